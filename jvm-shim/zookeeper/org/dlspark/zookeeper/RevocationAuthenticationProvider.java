package org.dlspark.zookeeper;

import java.security.cert.Certificate;
import java.security.cert.X509Certificate;
import java.util.Arrays;
import javax.net.ssl.X509KeyManager;
import org.apache.zookeeper.KeeperException;
import org.apache.zookeeper.common.X509Exception.KeyManagerException;
import org.apache.zookeeper.server.ServerCnxn;
import org.apache.zookeeper.server.auth.X509AuthenticationProvider;

/**
 * Lets clients into ZooKeeper by certificates that nobody has revoked, and lets them stay for as long as that is so.
 *
 * <p>ZooKeeper's own provider looks at a certificate once, and at no list of revoked ones that lies in a file. This one
 * reads the key store, the trust store and the lists again when they change, and ends open connections whose
 * certificate has been revoked or has ended ({@link Watch}). Identities are the same: scheme <code>x509</code>, the
 * subject as id, and <code>X509AuthenticationProvider.superUser</code>. In zoo.cfg:
 *
 * <pre>
 * authProvider.x509=org.dlspark.zookeeper.RevocationAuthenticationProvider
 * ssl.authProvider=x509
 * ssl.revocationLists.location=/etc/zookeeper/revoked.pem
 * </pre>
 *
 * <p>Where the last line names a file, nobody is let in before it is there. Without that line it is
 * <code>revoked.pem</code> in the folder of the trust store, and there may be none. With the second line a client is
 * refused in the handshake; without it, right after it.
 *
 * <p>ZooKeeper makes more than one provider in its life; all of them share one watch.
 */
public final class RevocationAuthenticationProvider extends X509AuthenticationProvider {
    private final Watch watch;

    /** Made by ZooKeeper, by the name in its configuration. */
    public RevocationAuthenticationProvider() {
        this(Watch.running());
    }

    private RevocationAuthenticationProvider(Watch watch) {
        super(new LiveTrustManager(watch), null);
        this.watch = watch;
    }

    /**
     * Returns the newest keys. ZooKeeper asks for each connection, and a manager that it has does not change: else a
     * certificate could go out with the key of the next one.
     */
    @Override
    public X509KeyManager getKeyManager() throws KeyManagerException {
        X509KeyManager keys = watch.keys();
        if (keys == null) {
            throw new KeyManagerException("the key store has not been read: " + watch.keyTrouble());
        }
        return keys;
    }

    @Override
    public KeeperException.Code handleAuthentication(ServerCnxn connection, byte[] data) {
        Certificate[] shown = connection.getClientCertificateChain();
        if (shown == null || shown.length == 0) {
            return KeeperException.Code.AUTHFAILED;
        }
        // Taken before the certificate is looked at: files that change meanwhile have it looked at again.
        Judge judge = watch.judge();
        KeeperException.Code code = super.handleAuthentication(connection, data);
        if (code == KeeperException.Code.OK) {
            watch.remember(connection, Arrays.copyOf(shown, shown.length, X509Certificate[].class), judge);
        }
        return code;
    }
}
