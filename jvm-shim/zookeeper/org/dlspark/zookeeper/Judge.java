package org.dlspark.zookeeper;

import java.security.GeneralSecurityException;
import java.security.KeyStore;
import java.security.cert.CertPathBuilder;
import java.security.cert.CertPathBuilderException;
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
    private final List<X509CRL> read;
    private final ListsInForce lists;
    private final String unread;

    private Judge(
            X509ExtendedTrustManager manager, Set<TrustAnchor> anchors, KeyStore trusted, List<X509CRL> read,
            String unread) {
        this.manager = manager;
        this.anchors = anchors;
        this.trusted = trusted;
        this.read = read;
        this.lists = read == null ? null : new ListsInForce(read, anchors);
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
        return trusted != authorities || read != newest;
    }

    /** Returns what is wrong with lists, so that an authority's certificates are refused, in words. */
    List<String> troubles() {
        return lists == null ? Collections.emptyList() : lists.troubles();
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
            ends.addAll(lists.ends());
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
        Set<TrustAnchor> good = anchors.stream().filter(
            one -> whyBad(one.getTrustedCert()) == null).collect(Collectors.toSet());
        if (!good.isEmpty()) {
            try {
                // Java searches until a way is good in all respects: there may be others, over certificates that are not.
                way(chain, good, lists);
                return;
            } catch (CertPathBuilderException none) {
                // The search does not say what was wrong with the way that comes nearest.
            }
        }
        throw whyNot(chain);
    }

    /** Returns why no certificate of an authority counts; null: they do. */
    private String whyBad(X509Certificate authority) {
        if (authority.getNotAfter().before(new Date())) {
            return "its authority, " + name(authority) + ", has ended";
        }
        return lists != null && lists.isRevoked(authority)
            ? "its authority, " + name(authority) + ", is revoked" : null;
    }

    private PKIXCertPathBuilderResult way(X509Certificate[] chain, Set<TrustAnchor> over, ListsInForce within)
            throws GeneralSecurityException {
        X509CertSelector wanted = new X509CertSelector();
        wanted.setCertificate(chain[0]);
        PKIXBuilderParameters search = new PKIXBuilderParameters(over, wanted);
        search.addCertStore(store(Arrays.asList(chain)));
        search.setRevocationEnabled(false);
        if (within != null) {
            search.addCertPathChecker(new ListCheck(over, within));
        }
        return (PKIXCertPathBuilderResult) CertPathBuilder.getInstance("PKIX").build(search);
    }

    /** Returns what is wrong with one of the ways above a certificate that has no good one. */
    private CertificateException whyNot(X509Certificate[] chain) throws GeneralSecurityException {
        PKIXCertPathBuilderResult way = way(chain, anchors, null);
        String bad = whyBad(way.getTrustAnchor().getTrustedCert());
        if (bad != null) {
            return new Refusal(bad, null);
        }
        if (lists != null) {
            PKIXParameters all = new PKIXParameters(Collections.singleton(way.getTrustAnchor()));
            all.setRevocationEnabled(false);
            all.addCertPathChecker(new ListCheck(all.getTrustAnchors(), lists));
            try {
                CertPathValidator.getInstance("PKIX").validate(way.getCertPath(), all);
            } catch (CertPathValidatorException refused) {
                return explained(refused, (X509Certificate) way.getCertPath().getCertificates().get(
                    Math.max(0, refused.getIndex())), chain[0]);
            }
        }
        return new Refusal("no good way leads from it to an authority that is believed", null);
    }

    /** A trust store may have the certificate of a single client: no authority is known then that could have signed. */
    private void checkSingle(X509Certificate own) throws CertificateException {
        own.checkValidity();
        if (lists == null) {
            return;
        }
        if (lists.isRevoked(own)) {
            throw new Refusal("its authority, " + authority(own) + ", has revoked it", null);
        }
        if (lists.currentAbout(own).isEmpty()) {
            throw new Refusal(unlisted(own), null);
        }
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
