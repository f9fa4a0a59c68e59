// Asks the real Java assignors for their answers to seeded random groups and prints them, one JSON object a line.
// tests/coordinator/test_assignors_java.py compares ours with the recording java_assignments.jsonl; see README.rst.
//
//   java -cp kafka-clients-4.3.0.jar:slf4j-api-1.7.36.jar RecordAssignments.java SEED CASES_PER_ASSIGNOR
//
// A line: assignor; topics {name: [racks of each partition's replicas, one letter a rack]}; members in the order of the
// JoinGroup answer [member id, instance id, metadata version, topics, rack, owned partitions, generation, user data
// (hex), CRC32 of the encoded subscription]; answer {member id: {topic: [partitions]}} or the exception's name.
import java.nio.ByteBuffer;
import java.util.*;
import java.util.stream.*;
import java.util.zip.CRC32;
import org.apache.kafka.clients.consumer.*;
import org.apache.kafka.clients.consumer.ConsumerPartitionAssignor.*;
import org.apache.kafka.clients.consumer.internals.ConsumerProtocol;
import org.apache.kafka.common.*;

public class RecordAssignments {
    static Random random;

    static class Member {
        String id, instance, rack;
        int version, generation = -1;
        TreeSet<String> topics;
        List<TopicPartition> owned = new ArrayList<>();
        ByteBuffer userData;
        long crc;
    }

    static boolean chance(double p) {
        return random.nextDouble() < p;
    }

    static int between(int low, int high) {
        return low + random.nextInt(high - low + 1);
    }

    static String hex(int digits) {
        StringBuilder text = new StringBuilder();
        for (int i = 0; i < digits; i++)
            text.append(Integer.toHexString(random.nextInt(16)));
        return text.toString();
    }

    public static void main(String[] args) {
        random = new Random(Long.parseLong(args[0]));
        int cases = Integer.parseInt(args[1]);
        for (String name : List.of("range", "roundrobin", "sticky", "cooperative-sticky"))
            for (int recorded = 0; recorded < cases; )
                recorded += group(name, cases - recorded);
    }

    // One group's life: a few rebalances with members, subscriptions and partitions changing in between.
    static int group(String name, int left) {
        boolean racks = chance(0.4), equal = chance(0.5), big = chance(0.07);
        TreeMap<String, List<String>> topics = new TreeMap<>();
        for (int i = between(0, 9) == 0 ? 0 : between(1, 5); i > 0; i--)
            topics.put((chance(0.5) ? "t" : "page-views.") + hex(2), partitions(between(1, big ? 40 : 9), racks));
        if (chance(0.2) && !topics.isEmpty())
            topics.put("same", partitions(topics.firstEntry().getValue().size(), racks));
        List<Member> members = new ArrayList<>();
        for (int i = big ? between(12, 40) : between(1, 7); i > 0; i--)
            members.add(join(racks));
        subscribe(members, topics, equal);
        boolean memory = name.contains("sticky");
        int rounds = Math.min(left, memory ? between(2, 5) : between(1, 2));
        for (int round = 0; round < rounds; round++) {
            if (round > 0)
                churn(members, topics, racks, equal);
            Map<String, Assignment> answer = record(name, topics, members);
            for (Member member : members) {
                if (answer == null || chance(0.08))
                    continue; // a member that missed a rebalance: its ownership and generation are old
                member.owned = answer.get(member.id).partitions();
                member.generation = round + 5;
            }
            if (memory && chance(0.3))
                scatter(topics, members, round + 5);
            if (memory && chance(0.15) && members.size() > 1) {
                Member zombie = members.get(random.nextInt(members.size()));
                List<TopicPartition> claims = new ArrayList<>(zombie.owned);
                claims.addAll(members.get(random.nextInt(members.size())).owned);
                zombie.owned = new ArrayList<>(new LinkedHashSet<>(claims));
                if (chance(0.5))
                    zombie.generation = Math.max(-1, zombie.generation - between(0, 2));
            }
        }
        return rounds;
    }

    // Another assignor was in use before: everything is owned by somebody, but in no balanced way.
    static void scatter(Map<String, List<String>> topics, List<Member> members, int generation) {
        members.forEach(member -> member.owned = new ArrayList<>());
        topics.forEach((topic, partitions) -> {
            List<Member> takers = members.stream().filter(m -> m.topics.contains(topic)).collect(Collectors.toList());
            for (int p = 0; p < partitions.size() && !takers.isEmpty(); p++)
                takers.get(random.nextInt(chance(0.7) ? 1 : takers.size())).owned.add(new TopicPartition(topic, p));
        });
        members.forEach(member -> member.generation = generation);
    }

    static List<String> partitions(int count, boolean racks) {
        List<String> result = new ArrayList<>();
        int replicas = chance(0.15) ? 3 : between(1, 2);
        for (int i = 0; i < count; i++) {
            List<String> all = new ArrayList<>(List.of("a", "b", "c"));
            Collections.shuffle(all, random);
            result.add(racks ? String.join("", all.subList(0, replicas)) : "");
        }
        return result;
    }

    static Member join(boolean racks) {
        Member member = new Member();
        member.id = (chance(0.5) ? "consumer-" : "app-" + between(1, 30) + "-") + hex(6);
        member.instance = chance(0.2) ? "i-" + hex(8) : null;
        member.version = chance(0.8) ? 3 : between(0, 3);
        member.rack = racks && chance(0.85) ? List.of("a", "b", "c", "d").get(chance(0.1) ? 3 : between(0, 2)) : null;
        return member;
    }

    static void subscribe(List<Member> members, Map<String, List<String>> topics, boolean equal) {
        for (Member member : members) {
            if (equal) {
                member.topics = new TreeSet<>(topics.keySet());
                continue;
            }
            if (member.topics != null && chance(0.7))
                continue;
            member.topics = topics.keySet().stream().filter(t -> chance(0.6)).collect(Collectors.toCollection(TreeSet::new));
            if (chance(0.1))
                member.topics.add("unknown");
        }
    }

    static void churn(List<Member> members, TreeMap<String, List<String>> topics, boolean racks, boolean equal) {
        if (chance(0.4) && members.size() > 1)
            members.remove(random.nextInt(members.size()));
        while (chance(0.35))
            members.add(random.nextInt(members.size() + 1), join(racks));
        if (chance(0.2) && !topics.isEmpty())
            topics.get(topics.firstKey()).addAll(partitions(between(1, 4), racks));
        if (chance(0.1))
            topics.put("new" + hex(1), partitions(between(1, 6), racks));
        if (chance(0.08) && topics.size() > 1)
            topics.remove(topics.firstKey());
        subscribe(members, topics, equal);
    }

    static Map<String, Assignment> record(String name, Map<String, List<String>> topics, List<Member> members) {
        Map<String, Subscription> subscriptions = new HashMap<>(); // as in ConsumerCoordinator.onLeaderElected
        for (Member member : members)
            subscriptions.put(member.id, subscription(name, member));
        String answer;
        Map<String, Assignment> result = null;
        try {
            result = assignor(name).assign(cluster(topics), new GroupSubscription(subscriptions)).groupAssignment();
            answer = "{" + new TreeMap<>(result).entrySet().stream()
                .map(e -> quote(e.getKey()) + ":" + byTopic(e.getValue().partitions())).collect(Collectors.joining(",")) + "}";
        } catch (RuntimeException | AssertionError e) {
            answer = quote(e.getClass().getSimpleName());
        }
        System.out.println("{\"assignor\":" + quote(name) + ",\"topics\":{" + topics.entrySet().stream()
            .map(e -> quote(e.getKey()) + ":[" + e.getValue().stream().map(RecordAssignments::quote).collect(Collectors.joining(",")) + "]")
            .collect(Collectors.joining(",")) + "},\"members\":[" + members.stream()
            .map(m -> "[" + quote(m.id) + "," + quote(m.instance) + "," + m.version + "," + "[" + m.topics.stream()
                .map(RecordAssignments::quote).collect(Collectors.joining(",")) + "]," + quote(m.rack) + ","
                + byTopic(name.equals("cooperative-sticky") ? m.owned : List.of()) + "," + m.generation + ","
                + (m.userData == null ? "null" : quote(toHex(m.userData))) + "," + m.crc + "]")
            .collect(Collectors.joining(",")) + "],\"answer\":" + answer + "}");
        return result;
    }

    static Subscription subscription(String name, Member member) {
        ConsumerPartitionAssignor own = assignor(name);
        if (member.generation >= 0)
            own.onAssignment(new Assignment(member.owned), new ConsumerGroupMetadata("g", member.generation, member.id, Optional.empty()));
        member.userData = own.subscriptionUserData(member.topics);
        if (member.userData != null && chance(0.05)) // another client: user data without the generation, or none we know
            member.userData = ByteBuffer.wrap(Arrays.copyOf(member.userData.array(), Math.max(2, member.userData.limit() - 4)));
        List<TopicPartition> owned = name.equals("cooperative-sticky") ? member.owned : List.of();
        Subscription sent = new Subscription(new ArrayList<>(member.topics), member.userData, owned, member.generation,
            Optional.ofNullable(member.rack));
        ByteBuffer blob = ConsumerProtocol.serializeSubscription(sent, (short) member.version);
        CRC32 crc = new CRC32();
        crc.update(blob.duplicate());
        member.crc = crc.getValue();
        Subscription received = ConsumerProtocol.deserializeSubscription(blob);
        received.setGroupInstanceId(Optional.ofNullable(member.instance));
        return received;
    }

    static ConsumerPartitionAssignor assignor(String name) {
        return switch (name) {
            case "range" -> new RangeAssignor();
            case "roundrobin" -> new RoundRobinAssignor();
            case "sticky" -> new StickyAssignor();
            default -> new CooperativeStickyAssignor();
        };
    }

    static Cluster cluster(Map<String, List<String>> topics) {
        Map<String, Node> nodes = new TreeMap<>();
        for (String rack : List.of("a", "b", "c"))
            nodes.put(rack, new Node(nodes.size(), "broker-" + rack, 9092, rack));
        Node rackless = new Node(9, "broker", 9092);
        List<PartitionInfo> infos = new ArrayList<>();
        topics.forEach((topic, partitions) -> {
            for (int p = 0; p < partitions.size(); p++) {
                Node[] replicas = partitions.get(p).isEmpty() ? new Node[] {rackless}
                    : Arrays.stream(partitions.get(p).split("")).map(nodes::get).toArray(Node[]::new);
                infos.add(new PartitionInfo(topic, p, replicas[0], replicas, replicas));
            }
        });
        List<Node> brokers = new ArrayList<>(nodes.values());
        brokers.add(rackless);
        return new Cluster("recorded", brokers, infos, Set.of(), Set.of());
    }

    static String byTopic(Collection<TopicPartition> partitions) {
        TreeMap<String, TreeSet<Integer>> grouped = new TreeMap<>();
        partitions.forEach(tp -> grouped.computeIfAbsent(tp.topic(), t -> new TreeSet<>()).add(tp.partition()));
        return "{" + grouped.entrySet().stream().map(e -> quote(e.getKey()) + ":" + e.getValue().toString().replace(" ", ""))
            .collect(Collectors.joining(",")) + "}";
    }

    static String toHex(ByteBuffer buffer) {
        StringBuilder text = new StringBuilder();
        for (int i = 0; i < buffer.limit(); i++)
            text.append(String.format("%02x", buffer.get(i)));
        return text.toString();
    }

    static String quote(String text) {
        return text == null ? "null" : "\"" + text + "\"";
    }
}
