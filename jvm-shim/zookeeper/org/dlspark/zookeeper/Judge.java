package org.dlspark.zookeeper;

import java.security.GeneralSecurityException;
import java.security.KeyStore;
import java.security.cert.CertPathBuilder;
import java.security.cert.CertPathValidator;
import java.security.cert.CertPathValidatorException;
import java.security.cert.CertPathValidatorException.BasicReason;
import java.security.cert.CertStore;
import java.security.cert.CertificateException;
import java.security.cert.CollectionCertStoreParameters;
import java.security.cert.PKIXBuilderParameters;
import java.security.cert.PKIXCertPathBuilderResult;
import java.security.cert.PKIXParameters;
import java.security.cert.TrustAnchor;
import java.security.cert.X509CRL;
import java.security.cert.X509CertSelector;
import java.security.cert.X509Certificate;
import java.util.Arrays;
import java.util.Collections;
import java.util.Date;
import java.util.HashSet;
import java.util.List;
import java.util.Set;
import java.util.stream.Collectors;
import javax.net.ssl.CertPathTrustManagerParameters;
import javax.net.ssl.TrustManager;
import javax.net.ssl.TrustManagerFactory;
import javax.net.ssl.X509ExtendedTrustManager;

/**
 * Judges certificates by authorities and lists as they were read together; immutable.
 *
 * <p>Where there are lists, each authority on the way from a certificate to a believed one needs one that has not
 * ended. Java forgives a list a quarter of an hour and does not look at the believed authority itself; here neither
 * is so, as on the other doors of a cluster. Nothing is fetched from addresses that stand in certificates.
 */
final class Judge {
    /** Why a certificate was refused, in our words. */
    static final class Refusal extends CertificateException {
        private static final long serialVersionUID = 1L;

        Refusal(String message, Throwable cause) {
            super(message, cause);
        }
    }

    /** What Java itself checks when a client comes: signatures, times, what a key is for. */
    interface Handshake {
        void check(X509ExtendedTrustManager authorities) throws CertificateException;
    }

    private final X509ExtendedTrustManager manager;
    private final Set<TrustAnchor> anchors;
    private final KeyStore trusted;
    private final List<X509CRL> lists;
    private final String unread;

    private Judge(
            X509ExtendedTrustManager manager, Set<TrustAnchor> anchors, KeyStore trusted, List<X509CRL> lists,
            String unread) {
        this.manager = manager;
        this.anchors = anchors;
        this.trusted = trusted;
        this.lists = lists;
        this.unread = unread;
    }

    /** Returns one that refuses everybody, since files could never be read. */
    static Judge ofNobody(String unread) {
        return new Judge(null, Collections.emptySet(), null, null, unread);
    }

    /** Returns one for the authorities in a store. <code>lists</code>: null means that none are looked at. */
    static Judge of(KeyStore trusted, List<X509CRL> lists) throws GeneralSecurityException {
        PKIXBuilderParameters parameters = new PKIXBuilderParameters(trusted, new X509CertSelector());
        parameters.setRevocationEnabled(false);
        TrustManagerFactory factory = TrustManagerFactory.getInstance("PKIX");
        factory.init(new CertPathTrustManagerParameters(parameters));
        for (TrustManager one : factory.getTrustManagers()) {
            if (one instanceof X509ExtendedTrustManager) {
                return new Judge(
                    (X509ExtendedTrustManager) one, parameters.getTrustAnchors(), trusted, lists, null);
            }
        }
        throw new GeneralSecurityException("Java has no trust manager for PKIX");
    }

    /** Returns whether it was made from other things than these. */
    boolean isOfOther(KeyStore authorities, List<X509CRL> newest) {
        return trusted != authorities || lists != newest;
    }

    X509Certificate[] acceptedIssuers() {
        return manager == null ? new X509Certificate[0] : manager.getAcceptedIssuers();
    }

    /** Judges a certificate without a handshake, later. */
    void check(X509Certificate[] chain) throws CertificateException {
        check(chain, authorities -> authorities.checkClientTrusted(chain, chain[0].getPublicKey().getAlgorithm()));
    }

    void check(X509Certificate[] chain, Handshake handshake) throws CertificateException {
        if (manager == null) {
            throw new Refusal("nobody is let in, because files were never read: " + unread, null);
        }
        handshake.check(manager);
        try {
            checkAbove(chain);
        } catch (CertificateException refused) {
            throw refused;
        } catch (GeneralSecurityException failed) {
            throw new Refusal("it cannot be judged: " + Report.reason(failed), failed);
        }
    }

    /** Returns the next moment at which a judgement may be another one, though no file has changed. */
    long nextEnd(X509Certificate[] chain) {
        Set<Date> ends = new HashSet<>();
        Arrays.stream(chain).forEach(one -> ends.add(one.getNotAfter()));
        anchors.stream().map(TrustAnchor::getTrustedCert).forEach(one -> ends.add(one.getNotAfter()));
        if (lists != null) {
            lists.forEach(one -> ends.add(one.getNextUpdate()));
        }
        long now = System.currentTimeMillis();
        return ends.stream().mapToLong(Date::getTime).filter(one -> one > now).min().orElse(Long.MAX_VALUE);
    }

    private void checkAbove(X509Certificate[] chain) throws GeneralSecurityException {
        X509Certificate own = chain[0];
        for (TrustAnchor anchor : anchors) {
            if (own.equals(anchor.getTrustedCert())) {
                checkSingle(own);
                return;
            }
        }
        X509CertSelector wanted = new X509CertSelector();
        wanted.setCertificate(own);
        PKIXBuilderParameters search = new PKIXBuilderParameters(anchors, wanted);
        search.addCertStore(store(Arrays.asList(chain)));
        search.setRevocationEnabled(false);
        PKIXCertPathBuilderResult way =
            (PKIXCertPathBuilderResult) CertPathBuilder.getInstance("PKIX").build(search);
        X509Certificate believed = way.getTrustAnchor().getTrustedCert();
        if (believed.getNotAfter().before(new Date())) {
            throw new Refusal("its authority, " + name(believed) + ", has ended", null);
        }
        if (lists == null) {
            return;
        }
        for (X509CRL list : current()) {
            if (list.getIssuerX500Principal().equals(believed.getIssuerX500Principal()) && list.isRevoked(believed)) {
                throw new Refusal("its authority, " + name(believed) + ", is revoked", null);
            }
        }
        PKIXParameters all = new PKIXParameters(Collections.singleton(way.getTrustAnchor()));
        all.addCertStore(store(current()));
        all.setRevocationEnabled(true);
        try {
            CertPathValidator.getInstance("PKIX").validate(way.getCertPath(), all);
        } catch (CertPathValidatorException refused) {
            throw explained(refused, (X509Certificate) way.getCertPath().getCertificates().get(
                Math.max(0, refused.getIndex())), own);
        }
    }

    /** A trust store may have the certificate of a single client: no authority is known then that could have signed. */
    private void checkSingle(X509Certificate own) throws CertificateException {
        own.checkValidity();
        if (lists == null) {
            return;
        }
        boolean listed = false;
        for (X509CRL list : current()) {
            if (list.getIssuerX500Principal().equals(own.getIssuerX500Principal())) {
                listed = true;
                if (list.isRevoked(own)) {
                    throw new Refusal("its authority, " + authority(own) + ", has revoked it", null);
                }
            }
        }
        if (!listed) {
            throw new Refusal(unlisted(own), null);
        }
    }

    private List<X509CRL> current() {
        Date now = new Date();
        return lists.stream().filter(one -> now.before(one.getNextUpdate())).collect(Collectors.toList());
    }

    private static CertificateException explained(
            CertPathValidatorException refused, X509Certificate at, X509Certificate own) {
        String which = at.equals(own) ? "it" : "the certificate of " + name(at);
        if (refused.getReason() == BasicReason.REVOKED) {
            return new Refusal("its authority, " + authority(at) + ", has revoked " + which, refused);
        }
        if (refused.getReason() == BasicReason.UNDETERMINED_REVOCATION_STATUS) {
            return new Refusal(unlisted(at), refused);
        }
        return new Refusal("it is not good: " + Report.reason(refused), refused);
    }

    private static String unlisted(X509Certificate at) {
        return "of its authority, " + authority(at) + ", there is no revocation list that holds now"
            + " (there is none, it has ended, or it is not signed by that authority)";
    }

    private static String name(X509Certificate one) {
        return one.getSubjectX500Principal().getName();
    }

    private static String authority(X509Certificate one) {
        return one.getIssuerX500Principal().getName();
    }

    private static CertStore store(List<?> content) throws GeneralSecurityException {
        return CertStore.getInstance("Collection", new CollectionCertStoreParameters(content));
    }
}
