package org.dlspark.zookeeper;

import java.net.Socket;
import java.security.cert.CertificateException;
import java.security.cert.X509Certificate;
import javax.net.ssl.SSLEngine;
import javax.net.ssl.X509ExtendedTrustManager;

/** Judges clients by the files as they are now, whatever they were when the connection was made. */
final class LiveTrustManager extends X509ExtendedTrustManager {
    private final Watch watch;

    LiveTrustManager(Watch watch) {
        this.watch = watch;
    }

    @Override
    public void checkClientTrusted(X509Certificate[] chain, String type) throws CertificateException {
        check(chain, authorities -> authorities.checkClientTrusted(chain, type));
    }

    @Override
    public void checkClientTrusted(X509Certificate[] chain, String type, Socket socket) throws CertificateException {
        check(chain, authorities -> authorities.checkClientTrusted(chain, type, socket));
    }

    @Override
    public void checkClientTrusted(X509Certificate[] chain, String type, SSLEngine engine) throws CertificateException {
        check(chain, authorities -> authorities.checkClientTrusted(chain, type, engine));
    }

    @Override
    public void checkServerTrusted(X509Certificate[] chain, String type) throws CertificateException {
        throw forClientsOnly();
    }

    @Override
    public void checkServerTrusted(X509Certificate[] chain, String type, Socket socket) throws CertificateException {
        throw forClientsOnly();
    }

    @Override
    public void checkServerTrusted(X509Certificate[] chain, String type, SSLEngine engine) throws CertificateException {
        throw forClientsOnly();
    }

    @Override
    public X509Certificate[] getAcceptedIssuers() {
        return watch.judge().acceptedIssuers();
    }

    private void check(X509Certificate[] chain, Judge.Handshake handshake) throws CertificateException {
        try {
            watch.judge().check(chain, handshake);
        } catch (CertificateException refused) {
            watch.report().refused(chain, refused);
            throw refused;
        }
    }

    private static CertificateException forClientsOnly() {
        return new CertificateException("this provider judges clients of a ZooKeeper server, and no servers");
    }
}
