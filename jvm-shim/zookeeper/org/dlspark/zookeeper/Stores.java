package org.dlspark.zookeeper;

import java.io.ByteArrayInputStream;
import java.io.File;
import java.io.IOException;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.LinkOption;
import java.nio.file.NoSuchFileException;
import java.nio.file.Path;
import java.nio.file.Paths;
import java.security.GeneralSecurityException;
import java.security.KeyStore;
import java.security.cert.CertificateFactory;
import java.security.cert.X509CRL;
import java.security.cert.X509Certificate;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Base64;
import java.util.List;
import java.util.regex.Matcher;
import java.util.regex.Pattern;
import javax.net.ssl.KeyManager;
import javax.net.ssl.KeyManagerFactory;
import javax.net.ssl.X509KeyManager;
import org.apache.zookeeper.common.ClientX509Util;
import org.apache.zookeeper.common.KeyStoreFileType;
import org.apache.zookeeper.common.X509Util;
import org.apache.zookeeper.common.ZKConfig;
import org.apache.zookeeper.util.PemReader;

/** The files that ZooKeeper's configuration names: what is in them, and when that is something else. */
final class Stores {
    static final String LISTS_LOCATION = "zookeeper.ssl.revocationLists.location";
    private static final String DEFAULT_LISTS = "revoked.pem";
    private static final Pattern BEGIN = Pattern.compile("-----BEGIN X509 CRL-----");
    private static final Pattern BLOCK =
        Pattern.compile("-----BEGIN X509 CRL-----([A-Za-z0-9+/=\\s]*)-----END X509 CRL-----");

    /** One file, or one with its password's: as it was when it could be read last. */
    abstract static class Part<T> {
        final String what;
        private byte[] seen;
        private T value;
        private String trouble;

        Part(String what) {
            this.what = what;
        }

        abstract List<Path> paths();

        abstract T read(byte[] content) throws IOException, GeneralSecurityException;

        T value() {
            return value;
        }

        /** Returns why the newest file is not in use; null where it is. */
        String trouble() {
            return trouble;
        }

        boolean wasRead() {
            return seen != null;
        }

        /** Looks at the file; returns whether it has something else than before. What is bad changes nothing. */
        boolean look(Report report) {
            try {
                byte[] content = content();
                if (Arrays.equals(content, seen)) {
                    settle(report);
                    return false;
                }
                T fresh = read(content);
                if (!Arrays.equals(content, content())) {
                    return false; // it is being written: the next look finds it whole
                }
                boolean again = seen != null;
                value = fresh;
                seen = content;
                if (again && trouble == null) {
                    report.info(what + ", " + place() + ", has changed and is in use");
                }
                settle(report);
                return true;
            } catch (IOException | GeneralSecurityException | RuntimeException failed) {
                String why = failed instanceof NoSuchFileException ? "the file is not there" : Report.reason(failed);
                if (!why.equals(trouble)) {
                    report.warn(what + ", " + place() + ", cannot be read: " + why + ". "
                        + (wasRead() ? "What it had before stays in force" : withoutIt()));
                }
                trouble = why;
                return false;
            }
        }

        String withoutIt() {
            return "Nobody is let in until it can";
        }

        void settle(Report report) {
            if (trouble != null) {
                report.info(what + ", " + place() + ", can be read again and is in use");
            }
            trouble = null;
        }

        String place() {
            try {
                return paths().get(0).toString();
            } catch (RuntimeException failed) {
                return "(" + failed.getMessage() + ")";
            }
        }

        private byte[] content() throws IOException {
            byte[] all = new byte[0];
            for (Path path : paths()) {
                byte[] one = Files.readAllBytes(path);
                byte[] longer = Arrays.copyOf(all, all.length + one.length);
                System.arraycopy(one, 0, longer, all.length, one.length);
                all = longer;
            }
            return all;
        }
    }

    /** The key store. */
    static final class Keys extends Part<X509KeyManager> {
        Keys() {
            super("the key store");
        }

        @Override
        List<Path> paths() {
            return stored("keyStore");
        }

        @Override
        X509KeyManager read(byte[] content) throws IOException, GeneralSecurityException {
            String password = password("keyStore");
            KeyStore store =
                X509Util.loadKeyStore(paths().get(0).toString(), password, setting("keyStore.type"));
            KeyManagerFactory factory = KeyManagerFactory.getInstance("PKIX");
            factory.init(store, password.toCharArray());
            for (KeyManager one : factory.getKeyManagers()) {
                if (one instanceof X509KeyManager) {
                    return (X509KeyManager) one;
                }
            }
            throw new GeneralSecurityException("Java has no key manager for it");
        }
    }

    /** The trust store. */
    static final class Authorities extends Part<KeyStore> {
        Authorities() {
            super("the trust store");
        }

        @Override
        List<Path> paths() {
            return stored("trustStore");
        }

        @Override
        KeyStore read(byte[] content) throws IOException, GeneralSecurityException {
            refuseOtherWays();
            String place = paths().get(0).toString();
            String type = setting("trustStore.type");
            KeyStore store = KeyStoreFileType.fromPropertyValueOrFileName(type, place) == KeyStoreFileType.PEM
                ? all(PemReader.readCertificateChain(new File(place)))
                : X509Util.loadTrustStore(place, password("trustStore"), type);
            Judge.of(store, null); // says what is wrong with it: one without a certificate, for example
            return store;
        }

        /** ZooKeeper's own reader keeps one certificate a name, and authorities may share theirs. */
        private static KeyStore all(List<X509Certificate> certificates) throws IOException, GeneralSecurityException {
            KeyStore store = KeyStore.getInstance(KeyStore.getDefaultType());
            store.load(null, null);
            for (X509Certificate one : certificates) {
                store.setCertificateEntry(String.valueOf(store.size()), one);
            }
            return store;
        }

        private static void refuseOtherWays() {
            ZKConfig config = new ZKConfig();
            try (ClientX509Util util = new ClientX509Util()) {
                if (config.getBoolean(util.getSslCrlEnabledProperty())
                        || config.getBoolean(util.getSslOcspEnabledProperty())) {
                    throw new IllegalArgumentException(
                        "ssl.crl and ssl.ocsp fetch from addresses in certificates, which this provider does not do:"
                        + " take them out of the configuration");
                }
                if (!X509Util.getFipsMode(config) && util.isClientHostnameVerificationEnabled(config)) {
                    throw new IllegalArgumentException(
                        "ssl.clientHostnameVerification is kept by this provider with fips-mode=true alone");
                }
            }
        }
    }

    /**
     * All lists of what is revoked, those that have ended among them. There may never have been a file, unless the
     * configuration names one: a name with a mistake in it must not mean that nothing counts as revoked.
     */
    static final class Lists extends Part<List<X509CRL>> {
        private boolean absent;

        Lists() {
            super("the file of revocation lists");
        }

        /** Returns true where there was no file from the start, so that nothing is checked by lists. */
        boolean isAbsent() {
            return absent && !wasRead();
        }

        @Override
        boolean look(Report report) {
            if (named().isEmpty() && !wasRead() && !absent && trouble() == null && isNotThere()) {
                report.warn("there is no file of revocation lists (" + place() + "): no certificate counts as revoked");
                absent = true;
            }
            return (wasRead() || !absent || !isNotThere()) && super.look(report);
        }

        @Override
        String withoutIt() {
            return absent ? "There was none before, so no certificate counts as revoked" : super.withoutIt();
        }

        @Override
        List<Path> paths() {
            String named = named();
            return List.of(
                named.isEmpty() ? stored("trustStore").get(0).toAbsolutePath().resolveSibling(DEFAULT_LISTS)
                    : Paths.get(named));
        }

        @Override
        List<X509CRL> read(byte[] content) throws GeneralSecurityException {
            String text = new String(content, StandardCharsets.ISO_8859_1);
            CertificateFactory factory = CertificateFactory.getInstance("X.509");
            List<X509CRL> found = new ArrayList<>();
            Matcher block = BLOCK.matcher(text);
            while (block.find()) {
                byte[] list = Base64.getMimeDecoder().decode(block.group(1));
                found.add((X509CRL) factory.generateCRL(new ByteArrayInputStream(list)));
            }
            if (found.isEmpty() || found.size() != BEGIN.matcher(text).results().count()) {
                throw new GeneralSecurityException("it holds no whole revocation list (a PEM block of X509 CRL)");
            }
            return found;
        }

        private static String named() {
            return System.getProperty(LISTS_LOCATION, "");
        }

        private boolean isNotThere() {
            try {
                Files.readAttributes(paths().get(0), "size", LinkOption.NOFOLLOW_LINKS);
                return false;
            } catch (NoSuchFileException gone) {
                return true;
            } catch (IOException | RuntimeException unknown) {
                return false;
            }
        }
    }

    private Stores() {
    }

    private static String setting(String name) {
        return new ZKConfig().getProperty("zookeeper.ssl." + name);
    }

    private static List<Path> stored(String store) {
        String place = setting(store + ".location");
        if (place == null || place.isEmpty()) {
            throw new IllegalArgumentException("ssl." + store + ".location is not set");
        }
        String secret = setting(store + ".passwordPath");
        return secret == null || secret.isEmpty() ? List.of(Paths.get(place))
            : List.of(Paths.get(place), Paths.get(secret));
    }

    private static String password(String store) {
        String prefix = "zookeeper.ssl." + store;
        try (ClientX509Util util = new ClientX509Util()) {
            return util.getPasswordFromConfigPropertyOrFile(
                new ZKConfig(), prefix + ".password", prefix + ".passwordPath");
        }
    }
}
