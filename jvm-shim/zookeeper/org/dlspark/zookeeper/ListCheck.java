package org.dlspark.zookeeper;

import java.security.GeneralSecurityException;
import java.security.PublicKey;
import java.security.cert.CertPathValidator;
import java.security.cert.CertPathValidatorException;
import java.security.cert.CertStore;
import java.security.cert.Certificate;
import java.security.cert.CertificateFactory;
import java.security.cert.CollectionCertStoreParameters;
import java.security.cert.PKIXCertPathChecker;
import java.security.cert.PKIXParameters;
import java.security.cert.TrustAnchor;
import java.security.cert.X509Certificate;
import java.util.Collection;
import java.util.Collections;
import java.util.List;
import java.util.Set;

/**
 * Looks for each certificate of a way into the list of the very key that has signed it.
 *
 * <p>Java's own check takes any list of the authority's name whose signer leads to a believed authority, and stops at the
 * first: of two authorities of one name the list of one would stand for the other's. So each certificate is handed to it
 * alone, below that one key.
 */
final class ListCheck extends PKIXCertPathChecker {
    private final Collection<TrustAnchor> anchors;
    private final ListsInForce lists;
    private PublicKey signer;

    /** <code>anchors</code>: those at which the way may end. */
    ListCheck(Collection<TrustAnchor> anchors, ListsInForce lists) {
        this.anchors = anchors;
        this.lists = lists;
    }

    /** A way is walked from the believed authority to the client. */
    @Override
    public void init(boolean forward) throws CertPathValidatorException {
        if (forward) {
            throw new CertPathValidatorException("lists are looked into from the authority on");
        }
        signer = null;
    }

    @Override
    public boolean isForwardCheckingSupported() {
        return false;
    }

    @Override
    public Set<String> getSupportedExtensions() {
        return null;
    }

    @Override
    public void check(Certificate certificate, Collection<String> unresolved) throws CertPathValidatorException {
        X509Certificate one = (X509Certificate) certificate;
        try {
            PublicKey key = signer == null ? believed(one) : signer;
            PKIXParameters alone =
                new PKIXParameters(Collections.singleton(new TrustAnchor(one.getIssuerX500Principal(), key, null)));
            alone.setRevocationEnabled(true);
            alone.addCertStore(
                CertStore.getInstance("Collection", new CollectionCertStoreParameters(lists.currentAbout(one))));
            CertPathValidator.getInstance("PKIX").validate(
                CertificateFactory.getInstance("X.509").generateCertPath(List.of(one)), alone);
        } catch (CertPathValidatorException refused) {
            throw refused;
        } catch (GeneralSecurityException failed) {
            throw new CertPathValidatorException("lists could not be looked into", failed);
        }
        signer = one.getPublicKey();
    }

    private PublicKey believed(X509Certificate one) throws CertPathValidatorException {
        for (TrustAnchor anchor : anchors) {
            X509Certificate authority = anchor.getTrustedCert();
            if (authority.getSubjectX500Principal().equals(one.getIssuerX500Principal())) {
                try {
                    one.verify(authority.getPublicKey());
                    return authority.getPublicKey();
                } catch (GeneralSecurityException another) {
                    // An authority of the same name and another key.
                }
            }
        }
        throw new CertPathValidatorException("no believed authority has signed it");
    }
}
