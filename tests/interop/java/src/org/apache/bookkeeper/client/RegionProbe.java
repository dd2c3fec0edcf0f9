package org.apache.bookkeeper.client;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.node.ArrayNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import io.netty.util.HashedWheelTimer;
import java.util.ArrayList;
import java.util.Collections;
import java.util.HashMap;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.Set;
import org.apache.bookkeeper.client.BookieInfoReader.BookieInfo;
import org.apache.bookkeeper.conf.ClientConfiguration;
import org.apache.bookkeeper.feature.SettableFeature;
import org.apache.bookkeeper.feature.SettableFeatureProvider;
import org.apache.bookkeeper.net.BookieId;
import org.apache.bookkeeper.net.BookieNode;
import org.apache.bookkeeper.net.BookieSocketAddress;
import org.apache.bookkeeper.net.DNSToSwitchMapping;
import org.apache.bookkeeper.stats.NullStatsLogger;

/**
 * Asks the real region-aware placement policy about topologies that a test made up: one policy for each case, and the
 * case's steps in turn. It lies in the policy's package because the policy's constructor, and the check that it makes
 * of each candidate, can be had from nowhere else.
 *
 * <p>A case: {@code "settings"} (keys as in a configuration), {@code "own"} (this client's location, or null),
 * {@code "disallowed"} (regions), {@code "durabilityOff"} (the feature), {@code "steps"}. A step says what it does in
 * {@code "do"}:
 *
 * <ul>
 *   <li>{@code cluster}: the nodes are these from now on. Gives the nodes that the policy did not take.
 *   <li>{@code ensemble}: new ensembles, as often as {@code "times"} says.
 *   <li>{@code replace}: a node for {@code "failed"} of {@code "ensemble"}, as often as {@code "times"} says.
 *   <li>{@code judge}: the policy's own check, candidate by candidate and as a whole, of nodes in this order.
 * </ul>
 */
public final class RegionProbe {
    static final String DISALLOWED = "disallowed";
    private static final ObjectMapper JSON = new ObjectMapper();
    private static final HashedWheelTimer TIMER = new HashedWheelTimer();

    /** Locations by host; a host that is no node of the case is the one that this client runs on. */
    private static final class Locations implements DNSToSwitchMapping {
        Map<String, String> table = new HashMap<>();
        String own;

        @Override
        public List<String> resolve(List<String> hosts) {
            List<String> found = new ArrayList<>(hosts.size());
            hosts.forEach(host -> found.add(table.containsKey(host) ? table.get(host) : own));
            return found;
        }

        @Override
        public void reloadCachedMappings() {}
    }

    private final Locations locations = new Locations();
    private final RegionAwareEnsemblePlacementPolicy policy = new RegionAwareEnsemblePlacementPolicy();

    private RegionProbe() {}

    /** Plays "cases", and gives what came of each of their steps. */
    public static Object playAll(JsonNode line) {
        ArrayNode played = JSON.createArrayNode();
        line.get("cases").forEach(one -> played.add(new RegionProbe().play(one)));
        return played;
    }

    private ObjectNode play(JsonNode one) {
        ObjectNode result = JSON.createObjectNode();
        ArrayNode steps = result.putArray("steps");
        try {
            start(one);
        } catch (IllegalArgumentException refused) {
            return result.put("refused", String.valueOf(refused.getMessage()));
        }
        for (JsonNode step : one.get("steps")) {
            ObjectNode outcome = steps.addObject();
            switch (step.get("do").asText()) {
                case "cluster" -> change(step, outcome);
                case "ensemble" -> ensembles(step, outcome);
                case "replace" -> replacements(step, outcome);
                case "judge" -> judge(step, outcome);
                default -> throw new IllegalArgumentException("no such step: " + step);
            }
        }
        return result;
    }

    private void start(JsonNode one) {
        ClientConfiguration conf = new ClientConfiguration();
        one.get("settings").fields().forEachRemaining(key -> conf.setProperty(key.getKey(), key.getValue().asText()));
        conf.setProperty(RegionAwareEnsemblePlacementPolicy.REPP_DISALLOW_BOOKIE_PLACEMENT_IN_REGION_FEATURE_NAME,
            DISALLOWED);
        conf.setProperty(RegionAwareEnsemblePlacementPolicy.REPP_DISABLE_DURABILITY_ENFORCEMENT_FEATURE,
            new SettableFeature("durability off", one.get("durabilityOff").asBoolean()));
        SettableFeatureProvider features = new SettableFeatureProvider("", 0);
        one.get("disallowed").forEach(region ->
            ((SettableFeature) features.scope(region.asText()).getFeature(DISALLOWED)).set(true));
        locations.own = one.get("own").isNull() ? null : one.get("own").asText();
        policy.initialize(conf, Optional.of(locations), TIMER, features, NullStatsLogger.INSTANCE,
            id -> new BookieSocketAddress(hostOf(id.toString()), 3181));
    }

    private static String hostOf(String bookie) {
        return bookie.substring(0, bookie.lastIndexOf(':'));
    }

    /**
     * Nodes leave and move first, and those that are new join one by one: a node that the policy does not take makes it
     * throw in the midst of a change, and lose those that came with it.
     */
    private void change(JsonNode step, ObjectNode outcome) {
        locations.table = new HashMap<>();
        step.get("locations").fields().forEachRemaining(entry -> locations.table.put(
            hostOf(entry.getKey()), entry.getValue().isNull() ? null : entry.getValue().asText()));
        Set<BookieId> writable = ids(step.get("writable"));
        Set<BookieId> readOnly = ids(step.get("readOnly"));
        Set<BookieId> known = new HashSet<>(policy.knownBookies.keySet());
        known.retainAll(writable);
        policy.onClusterChanged(known, readOnly);
        policy.onBookieRackChange(new ArrayList<>(ids(step.get("moved"))));
        ArrayNode dropped = outcome.putArray("dropped");
        for (JsonNode bookie : step.get("writable")) {
            BookieId id = BookieId.parse(bookie.asText());
            if (known.contains(id)) {
                continue;
            }
            known.add(id);
            try {
                policy.onClusterChanged(known, readOnly);
            } catch (RuntimeException notTaken) {
                known.remove(id);
                dropped.add(bookie);
            }
        }
        Map<BookieId, BookieInfo> weights = new HashMap<>();
        step.get("weights").fields().forEachRemaining(entry -> weights.put(
            BookieId.parse(entry.getKey()), new BookieInfo(Long.MAX_VALUE, entry.getValue().asLong())));
        if (!weights.isEmpty()) {
            policy.updateBookieInfo(weights);
        }
    }

    private void ensembles(JsonNode step, ObjectNode outcome) {
        ArrayNode made = outcome.putArray("made");
        repeat(step, outcome, () -> {
            ArrayNode nodes = made.addArray();
            try {
                policy.newEnsemble(size(step, "E"), size(step, "Qw"), size(step, "Qa"), Collections.emptyMap(),
                    ids(step.get("excluded"))).getResult().forEach(id -> nodes.add(id.toString()));
            } catch (BKException | RuntimeException refused) {
                made.remove(made.size() - 1);
                throw refused;
            }
        });
    }

    private void replacements(JsonNode step, ObjectNode outcome) {
        ArrayNode picked = outcome.putArray("picked");
        List<BookieId> ensemble = new ArrayList<>();
        step.get("ensemble").forEach(bookie -> ensemble.add(BookieId.parse(bookie.asText())));
        BookieId failed = BookieId.parse(step.get("failed").asText());
        repeat(step, outcome, () -> picked.add(policy.replaceBookie(size(step, "E"), size(step, "Qw"), size(step, "Qa"),
            Collections.emptyMap(), ensemble, failed, ids(step.get("excluded"))).getResult().toString()));
    }

    private interface Attempt {
        void run() throws BKException;
    }

    private static void repeat(JsonNode step, ObjectNode outcome, Attempt attempt) {
        ObjectNode refused = outcome.putObject("refused");
        for (int count = 0; count < step.get("times").asInt(); count++) {
            try {
                attempt.run();
            } catch (BKException | IllegalArgumentException thrown) {
                String name = thrown.getClass().getSimpleName();
                refused.put(name, refused.path(name).asInt() + 1);
            }
        }
    }

    /** Puts nodes into the policy's own coverage check, one after the other, as if each had just been chosen. */
    private void judge(JsonNode step, ObjectNode outcome) {
        boolean off = policy.disableDurabilityFeature.isAvailable();
        int regions = off ? 1 : policy.minRegionsForDurability;
        if (step.get("replacing").asBoolean()) {
            regions = policy.enforceDurabilityInReplace && !off ? policy.minRegionsForDurability : 1;
        }
        TopologyAwareEnsemblePlacementPolicy.RRTopologyAwareCoverageEnsemble coverage =
            new TopologyAwareEnsemblePlacementPolicy.RRTopologyAwareCoverageEnsemble(
                size(step, "E"), size(step, "Qw"), size(step, "Qa"),
                RegionAwareEnsemblePlacementPolicy.REGIONID_DISTANCE_FROM_LEAVES,
                regions > 0 ? new HashSet<>(policy.perRegionPlacement.keySet()) : null, regions,
                policy.minNumRacksPerWriteQuorum);
        ArrayNode fits = outcome.putArray("fits");
        for (JsonNode bookie : step.get("ensemble")) {
            BookieNode node = policy.convertBookieToNode(BookieId.parse(bookie.asText()));
            fits.add(coverage.apply(node, coverage));
            coverage.addNode(node);
        }
        outcome.put("valid", coverage.validate());
    }

    private static int size(JsonNode step, String name) {
        return step.get(name).asInt();
    }

    private static Set<BookieId> ids(JsonNode bookies) {
        Set<BookieId> found = new HashSet<>();
        bookies.forEach(bookie -> found.add(BookieId.parse(bookie.asText())));
        return found;
    }
}
