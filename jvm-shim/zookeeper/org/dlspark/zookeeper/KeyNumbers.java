package org.dlspark.zookeeper;

import java.nio.ByteBuffer;
import java.security.cert.X509CRL;
import java.security.cert.X509Certificate;
import java.security.cert.X509Extension;
import java.util.Arrays;

/**
 * The numbers of keys, by which authorities that bear one name are told apart.
 *
 * <p>A certificate and a list say which key has signed them (<code>authorityKeyIdentifier</code>, which RFC 5280 demands
 * of both). Where one does not say it, or not in a form that can be read, it may be of any key.
 */
final class KeyNumbers {
    private static final String OF_SUBJECT = "2.5.29.14";
    private static final String OF_AUTHORITY = "2.5.29.35";
    private static final int OCTETS = 0x04;
    private static final int SEQUENCE = 0x30;
    private static final int KEY_IN_AUTHORITY = 0x80;

    private KeyNumbers() {
    }

    /** Returns the number of the key that has signed a certificate or a list; null: it does not say. */
    static ByteBuffer signer(X509Extension signed) {
        ByteBuffer value = inner(whole(signed.getExtensionValue(OF_AUTHORITY)), OCTETS);
        ByteBuffer number = inner(inner(value, SEQUENCE), KEY_IN_AUTHORITY);
        if (number == null && signed instanceof X509Certificate) {
            X509Certificate one = (X509Certificate) signed;
            // A root may leave out that it was its own key.
            return one.getIssuerX500Principal().equals(one.getSubjectX500Principal()) ? own(one) : null;
        }
        return number;
    }

    /** Returns the number of a certificate's own key; null: it does not say. */
    static ByteBuffer own(X509Certificate certificate) {
        return inner(inner(whole(certificate.getExtensionValue(OF_SUBJECT)), OCTETS), OCTETS);
    }

    /** Returns whether a list is, or may be, of the authority that has signed a certificate. */
    static boolean mayBeAbout(X509CRL list, X509Certificate certificate) {
        if (!list.getIssuerX500Principal().equals(certificate.getIssuerX500Principal())) {
            return false;
        }
        ByteBuffer ofList = signer(list);
        ByteBuffer ofCertificate = signer(certificate);
        return ofList == null || ofCertificate == null || ofList.equals(ofCertificate);
    }

    private static ByteBuffer whole(byte[] value) {
        return value == null ? null : ByteBuffer.wrap(value);
    }

    /** Returns what the first element has, if it is of this kind; null otherwise. */
    private static ByteBuffer inner(ByteBuffer elements, int tag) {
        if (elements == null || elements.remaining() < 2) {
            return null;
        }
        ByteBuffer rest = elements.slice();
        if ((rest.get() & 0xff) != tag) {
            return null;
        }
        int length = rest.get() & 0xff;
        if (length > 0x80) {
            int bytes = length - 0x80;
            if (bytes > 2 || rest.remaining() < bytes) {
                return null;
            }
            length = 0;
            for (int one = 0; one < bytes; one++) {
                length = length << 8 | rest.get() & 0xff;
            }
        }
        if (length > rest.remaining()) {
            return null;
        }
        return ByteBuffer.wrap(Arrays.copyOfRange(
            rest.array(), rest.arrayOffset() + rest.position(), rest.arrayOffset() + rest.position() + length));
    }
}
