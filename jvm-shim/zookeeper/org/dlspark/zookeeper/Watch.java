package org.dlspark.zookeeper;

import java.security.GeneralSecurityException;
import java.security.cert.CertificateException;
import java.security.cert.X509Certificate;
import java.util.ArrayList;
import java.util.Iterator;
import java.util.List;
import java.util.Map;
import java.util.WeakHashMap;
import javax.net.ssl.X509KeyManager;
import org.apache.zookeeper.server.ServerCnxn;

/**
 * Looks at the files once a second, and at open connections whenever a judgement of theirs may be another one.
 *
 * <p>Files that cannot be read leave in force what was read before, with one line in the log. Those that could never be
 * read let nobody in. Connections are known weakly: this is no reason for them to stay in memory.
 */
final class Watch {
    private static final long EVERY_MS = 1_000;

    private static final class Running {
        private static final Watch WATCH = start();

        private static Watch start() {
            Watch watch = new Watch();
            watch.look();
            Thread thread = new Thread(watch::run, "dlspark-revocation");
            thread.setDaemon(true);
            thread.start();
            return watch;
        }
    }

    private static final class Judged {
        private final X509Certificate[] chain;
        private Judge judge;
        private long nextEnd;
        private boolean ended;

        private Judged(X509Certificate[] chain, Judge judge) {
            this.chain = chain;
            by(judge);
        }

        private void by(Judge newer) {
            judge = newer;
            nextEnd = newer.nextEnd(chain);
        }
    }

    private final Report report = new Report();
    private final Stores.Keys keys = new Stores.Keys();
    private final Stores.Authorities authorities = new Stores.Authorities();
    private final Stores.Lists lists = new Stores.Lists();
    private final Map<ServerCnxn, Judged> open = new WeakHashMap<>();
    private volatile X509KeyManager keyManager;
    private volatile String keyTrouble = "";
    private volatile Judge judge = Judge.ofNobody("not yet");

    private Watch() {
    }

    /** Returns that of this process. */
    static Watch running() {
        return Running.WATCH;
    }

    Judge judge() {
        return judge;
    }

    Report report() {
        return report;
    }

    X509KeyManager keys() {
        return keyManager;
    }

    String keyTrouble() {
        return keyTrouble;
    }

    void remember(ServerCnxn connection, X509Certificate[] chain, Judge by) {
        synchronized (open) {
            open.put(connection, new Judged(chain, by));
        }
    }

    private void run() {
        while (true) {
            try {
                Thread.sleep(EVERY_MS);
                look();
                lookAtConnections();
            } catch (InterruptedException ignored) {
                return;
            } catch (RuntimeException | Error failed) {
                // It has to go on: with it would end all revocation.
                report.warn("certificates could not be looked at, which is tried again: " + failed);
            }
        }
    }

    private void look() {
        if (keys.look(report)) {
            keyManager = keys.value();
        }
        keyTrouble = String.valueOf(keys.trouble());
        authorities.look(report);
        lists.look(report);
        if (!authorities.wasRead()) {
            judge = Judge.ofNobody("the trust store: " + authorities.trouble());
        } else if (!lists.wasRead() && !lists.isAbsent()) {
            judge = Judge.ofNobody("the file of revocation lists: " + lists.trouble());
        } else if (judge.isOfOther(authorities.value(), lists.value())) {
            // By what it was made from: should this fail, the next look tries it again.
            try {
                judge = Judge.of(authorities.value(), lists.value());
                judge.troubles().forEach(report::warn);
            } catch (GeneralSecurityException failed) {
                // It was tried with these authorities when they were read.
                throw new IllegalStateException(failed);
            }
        }
    }

    private void lookAtConnections() {
        Judge newest = judge;
        for (Map.Entry<ServerCnxn, Judged> one : due(newest)) {
            ServerCnxn connection = one.getKey();
            Judged judged = one.getValue();
            if (judged.ended) {
                close(connection);
                continue;
            }
            String why;
            try {
                newest.check(judged.chain);
                judged.by(newest);
                continue;
            } catch (CertificateException refused) {
                why = Report.reason(refused);
            } catch (RuntimeException failed) {
                // Of one connection; the others are looked at all the same.
                why = "it cannot be judged: " + failed;
            }
            judged.ended = true;
            report.warn("ended the connection of " + Report.subject(judged.chain) + " from "
                + connection.getRemoteSocketAddress() + ", session 0x" + Long.toHexString(connection.getSessionId())
                + ": " + why);
            close(connection);
        }
    }

    /**
     * Ends a connection. ZooKeeper's first close waits until all answers are sent, for which a client that reads nothing
     * lets it wait, and serves what comes meanwhile. Of an invalid one it drops that, and the next close waits no more.
     */
    private void close(ServerCnxn connection) {
        try {
            connection.setInvalid();
            connection.close(ServerCnxn.DisconnectReason.CONNECTION_CLOSE_FORCED);
        } catch (RuntimeException failed) {
            report.warn("a connection could not be closed, which is tried again: " + failed);
        }
    }

    /** Returns the connections whose judgement may be another one now, and those that should be closed and are not. */
    private List<Map.Entry<ServerCnxn, Judged>> due(Judge newest) {
        long now = System.currentTimeMillis();
        List<Map.Entry<ServerCnxn, Judged>> found = new ArrayList<>();
        synchronized (open) {
            Iterator<Map.Entry<ServerCnxn, Judged>> all = open.entrySet().iterator();
            while (all.hasNext()) {
                Map.Entry<ServerCnxn, Judged> one = all.next();
                Judged judged = one.getValue();
                // A stale one may still be open, and heard. One that is closed is interested in nothing.
                if (one.getKey().isStale() && one.getKey().getInterestOps() == 0) {
                    all.remove();
                } else if (judged.ended || judged.judge != newest || judged.nextEnd <= now) {
                    found.add(Map.entry(one.getKey(), judged));
                }
            }
        }
        return found;
    }
}
