package org.dlspark.zookeeper;

import java.nio.ByteBuffer;
import java.security.PublicKey;
import java.security.cert.TrustAnchor;
import java.security.cert.X509CRL;
import java.security.cert.X509Certificate;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Collection;
import java.util.Comparator;
import java.util.Date;
import java.util.HashSet;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.stream.Collectors;
import javax.security.auth.x500.X500Principal;

/**
 * The lists in force: the newest of each authority, or of each part where one has divided its certificates.
 *
 * <p>Authorities may share a name; the number of the key that has signed a list says whose it is. Of lists of such a name
 * that do not say it, each may be about both. A list that has ended is in force like any other, in the place of older
 * ones, but lets nobody in: so one authority's does not keep out what others have revoked.
 */
final class ListsInForce {
    private static final String PART = "2.5.29.28";

    private final List<X509CRL> inForce = new ArrayList<>();

    ListsInForce(List<X509CRL> all, Collection<TrustAnchor> anchors) {
        Map<List<Object>, List<X509CRL>> groups = new LinkedHashMap<>();
        for (X509CRL one : all) {
            List<Object> whose = List.of(one.getIssuerX500Principal(), Arrays.toString(one.getExtensionValue(PART)));
            groups.computeIfAbsent(whose, ignored -> new ArrayList<>()).add(one);
        }
        for (List<X509CRL> group : groups.values()) {
            group.sort(Comparator.comparing(X509CRL::getThisUpdate).reversed());
            boolean shared = isShared(group.get(0).getIssuerX500Principal(), all, anchors);
            Set<ByteBuffer> seen = new HashSet<>();
            for (X509CRL one : shared ? group : group.subList(0, 1)) {
                ByteBuffer signer = KeyNumbers.signer(one);
                // Of those that do not say whose they are, an older one may be the other authority's.
                if (signer == null || seen.add(signer)) {
                    inForce.add(one);
                }
            }
        }
    }

    /** Returns those that hold now, and are or may be about a certificate. */
    List<X509CRL> currentAbout(X509Certificate certificate) {
        return inForce.stream().filter(one -> holds(one) && KeyNumbers.mayBeAbout(one, certificate)).collect(
            Collectors.toList());
    }

    /** Returns whether one of them has it. */
    boolean isRevoked(X509Certificate certificate) {
        return currentAbout(certificate).stream().anyMatch(one -> one.isRevoked(certificate));
    }

    /** Returns when they end. */
    List<Date> ends() {
        return inForce.stream().map(X509CRL::getNextUpdate).filter(one -> one != null).collect(Collectors.toList());
    }

    /** Returns what is wrong with those that do not hold, in words. */
    List<String> troubles() {
        return inForce.stream().filter(one -> !holds(one)).map(one ->
            "the revocation list of " + one.getIssuerX500Principal().getName() + (one.getNextUpdate() == null
                ? " does not say how long it holds" : " ended at " + one.getNextUpdate().toInstant())
                + ": what that authority has signed is refused. Fetch its new list (dlspark tls renew makes one)"
        ).collect(Collectors.toList());
    }

    private static boolean holds(X509CRL one) {
        return one.getNextUpdate() != null && new Date().before(one.getNextUpdate());
    }

    private static boolean isShared(X500Principal name, List<X509CRL> all, Collection<TrustAnchor> anchors) {
        Set<PublicKey> keys = new HashSet<>();
        Set<ByteBuffer> numbers = new HashSet<>();
        for (TrustAnchor anchor : anchors) {
            X509Certificate one = anchor.getTrustedCert();
            if (one.getSubjectX500Principal().equals(name)) {
                keys.add(one.getPublicKey());
                numbers.add(KeyNumbers.own(one));
            }
        }
        all.stream().filter(one -> one.getIssuerX500Principal().equals(name)).map(KeyNumbers::signer).forEach(numbers::add);
        numbers.remove(null);
        return keys.size() > 1 || numbers.size() > 1;
    }
}
