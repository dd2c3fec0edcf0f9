package org.dlspark.zookeeper;

import java.security.cert.X509Certificate;
import java.util.LinkedHashMap;
import java.util.Map;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;
import org.slf4j.helpers.NOPLoggerFactory;

/** Says in ZooKeeper's log who was refused and why; on standard error where ZooKeeper has no log. */
final class Report {
    private static final Logger LOG = LoggerFactory.getLogger(RevocationAuthenticationProvider.class);
    private static final boolean MUTE = LoggerFactory.getILoggerFactory() instanceof NOPLoggerFactory;
    private static final int MAX_LENGTH = 600;
    private static final int MAX_REMEMBERED = 1_000;
    /** A client that is refused tries again many times a second: what was said is said again after this time. */
    private static final long AGAIN_NS = 60_000_000_000L;

    private final Map<String, Long> said = new LinkedHashMap<>();

    void refused(X509Certificate[] chain, Exception why) {
        String line = "refused a client, " + subject(chain) + ": " + reason(why);
        long now = System.nanoTime();
        synchronized (said) {
            Long before = said.get(line);
            if (before != null && now - before < AGAIN_NS) {
                return;
            }
            said.remove(line);
            said.put(line, now);
            if (said.size() > MAX_REMEMBERED) {
                said.remove(said.keySet().iterator().next());
            }
        }
        warn(line);
    }

    void warn(String line) {
        String plain = printable(line);
        if (MUTE) {
            System.err.println(java.time.Instant.now() + " WARN " + plain);
        } else {
            LOG.warn("{}", plain);
        }
    }

    void info(String line) {
        String plain = printable(line);
        if (MUTE) {
            System.err.println(java.time.Instant.now() + " INFO " + plain);
        } else {
            LOG.info("{}", plain);
        }
    }

    static String subject(X509Certificate[] chain) {
        return chain == null || chain.length == 0
            ? "without a certificate" : chain[0].getSubjectX500Principal().getName();
    }

    /** Returns the first message that is ours, or the innermost of Java's, which says most. */
    static String reason(Throwable error) {
        Throwable found = error;
        while (!(found instanceof Judge.Refusal) && found.getCause() != null && found.getCause() != found) {
            found = found.getCause();
        }
        return found.getMessage() == null ? found.toString() : found.getMessage();
    }

    /** Subjects are what strangers write: no line of a log is to be made of them. */
    private static String printable(String line) {
        StringBuilder plain = new StringBuilder();
        line.codePoints().limit(MAX_LENGTH).map(one -> Character.isISOControl(one) || !Character.isDefined(one)
            || Character.getType(one) == Character.FORMAT || Character.getType(one) == Character.LINE_SEPARATOR
            || Character.getType(one) == Character.PARAGRAPH_SEPARATOR ? '?' : one).forEach(plain::appendCodePoint);
        return plain.toString();
    }
}
