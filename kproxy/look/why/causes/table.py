"""The errors that matter most to users: what each means, the finder of its cause, what helps.

Meanings and remedies say what holds for every API that reports the error; what depends on the
recording is for the finder to say.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import attrs

from kproxy.exchange.exchange import Exchange
from kproxy.exchange.facts import is_changed_by_rule
from kproxy.exchange.words.wording import age, listed, shortened
from kproxy.look.why.case import Case
from kproxy.look.why.causes import cluster, groups, producers, records, security
from kproxy.wire.protocol import error_code, is_retriable

Finder = Callable[[Case], Iterator[str]]
"""A function that yields what the recording shows of the cause of a failure."""


def nothing(case: Case) -> Iterator[str]:
    """Yield nothing: the recording cannot show more than the error itself."""
    return iter(())


def _transaction_timeout(case: Case) -> Iterator[str]:
    timeout_ms = getattr(case.exchange.request, "transaction_timeout_ms", None)
    if timeout_ms is not None:
        yield f"It asks for a transaction timeout of {age(timeout_ms)}."


def _session_timeout(case: Case) -> Iterator[str]:
    timeout_ms = getattr(case.exchange.request, "session_timeout_ms", None)
    if timeout_ms is not None:
        yield f"It asks for a session timeout of {age(timeout_ms)}."


def _member_id(case: Case) -> Iterator[str]:
    if member_id := getattr(case.exchange.response, "member_id", ""):
        yield f"The new member's id is {shortened(member_id)}."


def _throttle_time(case: Case) -> Iterator[str]:
    if throttle_ms := getattr(case.exchange.response, "throttle_time_ms", 0):
        yield f"The broker has the client wait for {age(throttle_ms)}."


@attrs.frozen
class Cause:
    """An error: its meaning, its remedy and, with finders, its cause."""

    meaning: str
    """Follows "failed with NAME:"."""
    remedy: str
    """Sentences."""
    before: Finder = nothing
    """Looks at the history as it is when the failure is known …"""
    after: Finder = nothing
    """… and at its end."""


_CHANGED = "What the broker got is what a fault rule had made of the request."
_ROUTINE = "That is routine: clients go on by themselves, and nothing is lost."


def causes_before(case: Case) -> list[str]:
    """Return what the history shows of a cause so far."""
    cause = None if case.failure.by_rule else CAUSES.get(case.failure.error)
    return [*cause.before(case)] if cause is not None else []


def explained(case: Case, before: list[str]) -> Iterator[str]:
    """Yield the sentences about a failure at the end of the recording; `before` are those of
    `causes_before`."""
    error = case.failure.error
    cause = CAUSES.get(error)
    text = f"{case.failure.subject} failed with {error}"
    if case.failure.by_rule:  # neither its meaning nor its cause is one of the cluster
        yield f"{text}: a fault rule made this error; {_said_by_broker(case.exchange)}."
        return
    if cause is None:
        code = error_code(error)
        retriable = code is not None and is_retriable(code)
        yield f"{text}; clients may try again." if retriable else f"{text}."
        return
    yield f"{text}: {cause.meaning}."
    yield from before
    yield from cause.after(case)
    if is_changed_by_rule(case.exchange.row.request_flags):
        yield _CHANGED
    else:
        yield _ROUTINE if case.exchange.routine else cause.remedy


def _said_by_broker(exchange: Exchange) -> str:
    if exchange.injected:
        return "the broker was not asked"
    if exchange.broker_errors:
        return f"the broker had answered {listed(exchange.broker_errors)}"
    given = [
        f"{each.where.topic}[{each.where.partition}] offset {each.offset}"
        for each in exchange.facts.results
        if exchange.api == "Produce" and each.offset >= 0
    ]
    return "the broker had answered without an error" + (f", {listed(given, 6)}" if given else "")


_JOINS_AGAIN = (
    "A consumer that goes on polling joins again by itself; what it had not committed is read once"
    " more, by whoever has the partition then."
)
_POLLS = (
    " If the app takes long between two polls, a larger max.poll.interval.ms or a smaller"
    " max.poll.records helps; if the process stalls, a larger session.timeout.ms."
)
_REFRESH = "Clients refresh their metadata and go on with the new leader by themselves."
_LOOKS_UP = "Clients look the coordinator up and ask again by themselves."
_ONE_PRODUCER = (
    "A transactional.id is for one producer at a time: where two run, each needs its own; a"
    " restarted one fences the old one on purpose. Transactions must end within"
    " transaction.timeout.ms."
)
_ALLOW = "An administrator can allow it with an ACL for the client's principal (kafka-acls.sh)."
_MAY_BE_WRITTEN = (
    " What was asked may have been done all the same: only an idempotent producer can send it"
    " again without duplicates."
)

CAUSES: dict[str, Cause] = {
    # producers
    "INVALID_PRODUCER_EPOCH": Cause(
        "the broker knows a newer epoch of this producer id", _ONE_PRODUCER, producers.taken_over
    ),
    "PRODUCER_FENCED": Cause(
        "a newer producer has this transactional id", _ONE_PRODUCER, producers.taken_over
    ),
    "OUT_OF_ORDER_SEQUENCE_NUMBER": Cause(
        "the batch does not follow the last one that the partition has of this producer",
        "Producers resend the batches before it first, and then it is accepted. Where it stays"
        " so, batches before it are missing in the log.",
        producers.last_sequence,
        producers.lost_before,
    ),
    "DUPLICATE_SEQUENCE_NUMBER": Cause(
        "the partition has this batch already",
        "Nothing is lost: clients count the batch as written.",
        producers.first_sent,
    ),
    "UNKNOWN_PRODUCER_ID": Cause(
        "the partition has nothing of this producer id, or not any more",
        "It happens where all records of the producer were deleted by retention or DeleteRecords:"
        " newer clients raise their epoch and go on; for others retention must be longer than"
        " the producer pauses.",
        producers.last_sequence,
        producers.lost_before,
    ),
    "INVALID_PRODUCER_ID_MAPPING": Cause(
        "the coordinator has another producer id for this transactional id, or none any more",
        "A new producer gets a valid one. Coordinators forget a transactional id that was not used"
        " for transactional.id.expiration.ms.",
        producers.taken_over,
    ),
    "INVALID_TXN_STATE": Cause(
        "the transaction is not in a state in which this can be asked",
        "A transaction is begun, written to and ended once, in this order; the app's use of the"
        " producer tells where that was broken.",
        producers.transaction_before,
    ),
    "CONCURRENT_TRANSACTIONS": Cause(
        "the coordinator is still busy with an earlier transaction of this transactional id",
        "Clients wait and ask again by themselves.",
        producers.transaction_before,
    ),
    "TRANSACTION_ABORTABLE": Cause(
        "the transaction cannot be committed any more, but the producer may go on",
        "The app aborts the transaction and does its work again in a new one.",
        producers.transaction_before,
    ),
    "INVALID_TRANSACTION_TIMEOUT": Cause(
        "the transaction timeout is larger than the broker allows",
        "Either transaction.timeout.ms of the producer or transaction.max.timeout.ms of the"
        " brokers has to change.",
        _transaction_timeout,
    ),
    # leaders, replicas, topics
    "NOT_LEADER_OR_FOLLOWER": Cause(
        "the broker is not the leader of the partition, nor a replica that may serve it",
        _REFRESH,
        after=cluster.leader,
    ),
    "FENCED_LEADER_EPOCH": Cause(
        "the client knows an older leader epoch than the broker", _REFRESH, after=cluster.leader
    ),
    "UNKNOWN_LEADER_EPOCH": Cause(
        "the client knows a newer leader epoch than the broker",
        "Clients ask again by themselves, until the broker has caught up.",
        after=cluster.leader,
    ),
    "LEADER_NOT_AVAILABLE": Cause(
        "the partition has no leader at the moment",
        "Clients ask again by themselves. A new topic has its leaders soon; a partition that"
        " stays without one has lost the brokers with its replicas.",
        after=cluster.leader,
    ),
    "UNKNOWN_TOPIC_OR_PARTITION": Cause(
        "the broker does not know the topic or the partition",
        "If the name is meant, the topic must be created; brokers do so by themselves only with"
        " auto.create.topics.enable, and only for clients that want it.",
        after=cluster.topic_known,
    ),
    "UNKNOWN_TOPIC_ID": Cause(
        "the broker does not know the id of the topic: it was deleted, or is too new",
        "Clients refresh their metadata and ask again by themselves.",
        after=cluster.topic_known,
    ),
    "INVALID_TOPIC_EXCEPTION": Cause(
        "no topic can have this name, or clients may not use it",
        "Names have letters, digits, '.', '_' and '-', and at most 249 characters.",
        cluster.refused_names,
    ),
    "TOPIC_ALREADY_EXISTS": Cause(
        "there is a topic of this name", "The topic can be used as it is.", after=cluster.creation
    ),
    "INVALID_REPLICATION_FACTOR": Cause(
        "there are not as many brokers as replicas are asked for, or the number is not positive",
        "A smaller replication factor, or more brokers.",
        after=cluster.brokers,
    ),
    "INVALID_PARTITIONS": Cause(
        "the number of partitions is not valid",
        "A topic has one partition at least, and never gets fewer than it has.",
    ),
    "INVALID_CONFIG": Cause(
        "a configuration is not valid", "The message of the broker says which, where it has one."
    ),
    "POLICY_VIOLATION": Cause(
        "a policy of the brokers forbids it",
        "The message of the broker says which, where it has one; the brokers'"
        " create.topic.policy.class.name and alter.config.policy.class.name name the policies.",
    ),
    "NOT_ENOUGH_REPLICAS": Cause(
        "fewer replicas are in sync than min.insync.replicas, so nothing was written",
        "Producers try again by themselves. It lasts until the brokers with the other replicas"
        " are back and have caught up.",
        after=cluster.replicas,
    ),
    "NOT_ENOUGH_REPLICAS_AFTER_APPEND": Cause(
        "the records are in the leader's log, but fewer replicas than min.insync.replicas have"
        " them",
        "Producers try again by themselves; without idempotence the records are then in the log"
        " twice. It lasts until the brokers with the other replicas are back.",
        after=cluster.replicas,
    ),
    "REQUEST_TIMED_OUT": Cause(
        "the broker could not finish within the time that the request allows",
        "Clients ask again by themselves where they can." + _MAY_BE_WRITTEN,
        producers.acks,
    ),
    "KAFKA_STORAGE_ERROR": Cause(
        "the broker could not use the disk with the partition",
        "The broker's log names the folder; clients go on with another replica once it leads.",
        after=cluster.leader,
    ),
    "NOT_CONTROLLER": Cause(
        "the broker is not the controller",
        "Clients look the controller up and ask again by themselves.",
        after=cluster.controller,
    ),
    "UNKNOWN_SERVER_ERROR": Cause(
        "the broker met an error that it has no code for", "Only the broker's log says which."
    ),
    # records and offsets
    "OFFSET_OUT_OF_RANGE": Cause(
        "the log of the partition does not have the offset",
        "A consumer with auto.offset.reset=earliest or latest goes on from there, and reads what"
        " is left, or only what comes; with none its app gets an exception. Where records are"
        " deleted before they are read, a longer retention helps.",
        records.log_range,
        records.log_range_later,
    ),
    "MESSAGE_TOO_LARGE": Cause(
        "the batch is larger than the topic or the broker accepts",
        "Either max.message.bytes of the topic (message.max.bytes of the brokers) grows, or the"
        " producer's batch.size and records shrink; compression helps, too.",
        after=records.sizes,
    ),
    "RECORD_LIST_TOO_LARGE": Cause(
        "the batch is larger than a segment of the log",
        "A smaller batch, or larger segments (segment.bytes).",
        after=records.sizes,
    ),
    "CORRUPT_MESSAGE": Cause(
        "the batch did not pass the broker's check, of its checksum or its format",
        "A wrong checksum points at the network or the client's memory; a right one at the format"
        " that the client writes.",
        records.checksums,
    ),
    "INVALID_RECORD": Cause(
        "a record broke a rule of the broker or of the topic",
        "Compacted topics accept no records without a key; timestamps must be near the broker's"
        " time where the topic says so.",
        records.refused_records,
    ),
    "INVALID_TIMESTAMP": Cause(
        "a record's timestamp is too far from the broker's time",
        "The clock of the client or the timestamps that the app sets need a look; the topic's"
        " message.timestamp.before.max.ms and message.timestamp.after.max.ms are the limits.",
        records.timestamps,
    ),
    "UNSUPPORTED_COMPRESSION_TYPE": Cause(
        "the compression cannot be used with this version of the request",
        "zstd needs a client and a broker that know it (Produce v7, Fetch v10).",
        records.compression,
    ),
    "UNSUPPORTED_FOR_MESSAGE_FORMAT": Cause(
        "the format of the records does not allow it",
        "Transactions, idempotence and headers need the message format of Kafka 0.11.",
        records.compression,
    ),
    "INVALID_REQUIRED_ACKS": Cause(
        "acks is none of 0, 1 and all", "The producer's acks must be 0, 1 or all.", producers.acks
    ),
    # logins and permissions
    "TOPIC_AUTHORIZATION_FAILED": Cause(
        "the client may not do this with the topic", _ALLOW, security.login
    ),
    "GROUP_AUTHORIZATION_FAILED": Cause(
        "the client may not do this with the group", _ALLOW, security.login
    ),
    "CLUSTER_AUTHORIZATION_FAILED": Cause(
        "the client may not do this with the cluster",
        f"{_ALLOW} Idempotent producers without a transactional id need IDEMPOTENT_WRITE on the"
        " cluster where brokers are older than Kafka 3.0.",
        security.login,
    ),
    "TRANSACTIONAL_ID_AUTHORIZATION_FAILED": Cause(
        "the client may not use the transactional id", _ALLOW, security.login
    ),
    "SASL_AUTHENTICATION_FAILED": Cause(
        "the broker does not accept the login",
        "User, password or token must be those that the broker has for this mechanism.",
        security.chosen,
        security.next_login,
    ),
    "UNSUPPORTED_SASL_MECHANISM": Cause(
        "the broker does not offer this mechanism on the listener",
        "The client's sasl.mechanism must be one that the listener enables.",
        security.mechanisms,
    ),
    "ILLEGAL_SASL_STATE": Cause(
        "the request does not belong to this step of a login",
        "The client's security.protocol must be that of the listener: with SASL or without.",
        security.login,
    ),
    "UNSUPPORTED_VERSION": Cause(
        "the broker does not know this version of the request",
        "Clients choose a version that both know by themselves, after ApiVersions. Where they"
        " cannot, one side is too old: brokers of Kafka 4.0 refuse clients older than 2.1.",
        cluster.versions,
    ),
    # groups
    "MEMBER_ID_REQUIRED": Cause(
        "the coordinator gives a new member its id first",
        "That is how joining begins: the client joins again with that id.",
        _member_id,
    ),
    "ILLEGAL_GENERATION": Cause(
        "the request is of a generation of the group that is over",
        _JOINS_AGAIN + _POLLS,
        groups.membership_lost,
    ),
    "UNKNOWN_MEMBER_ID": Cause(
        "the coordinator does not know the member, or not any more",
        _JOINS_AGAIN + _POLLS,
        groups.membership_lost,
    ),
    "REBALANCE_IN_PROGRESS": Cause(
        "the group is about to share out its partitions anew",
        "Consumers join again by themselves: that is how they learn of a rebalance.",
        after=groups.rebalance,
    ),
    "FENCED_INSTANCE_ID": Cause(
        "another member has joined with the same group.instance.id",
        "Each running consumer of a group needs a group.instance.id of its own.",
        groups.instance_taken,
    ),
    "UNRELEASED_INSTANCE_ID": Cause(
        "another member still has this group.instance.id",
        "The other one must leave, or its session must time out; each running consumer of a group"
        " needs a group.instance.id of its own.",
        groups.instance_taken,
    ),
    "INCONSISTENT_GROUP_PROTOCOL": Cause(
        "the members of the group have no assignor in common",
        "All members must offer one assignor (partition.assignment.strategy) that the others"
        " offer, too; changing it takes two rounds of restarts.",
        groups.protocols,
    ),
    "INVALID_SESSION_TIMEOUT": Cause(
        "the session timeout is not within the broker's limits",
        "group.min.session.timeout.ms and group.max.session.timeout.ms of the brokers are the"
        " limits of session.timeout.ms.",
        _session_timeout,
    ),
    "GROUP_MAX_SIZE_REACHED": Cause(
        "the group has as many members as the broker allows",
        "group.max.size of the brokers is the limit.",
        cluster.in_group,
    ),
    "NON_EMPTY_GROUP": Cause(
        "the group has members",
        "It can be deleted, or its offsets changed, once all members have left.",
        cluster.in_group,
    ),
    "NOT_COORDINATOR": Cause(
        "the broker is not the coordinator of the group or transactional id",
        _LOOKS_UP,
        after=groups.coordinator,
    ),
    "COORDINATOR_NOT_AVAILABLE": Cause(
        "there is no coordinator at the moment",
        f"{_LOOKS_UP} In a new cluster it takes a while; where it stays so, the partitions of"
        " __consumer_offsets or __transaction_state have no leader.",
        after=groups.coordinator,
    ),
    "COORDINATOR_LOAD_IN_PROGRESS": Cause(
        "the coordinator is still loading its state", "Clients ask again by themselves."
    ),
    "UNSTABLE_OFFSET_COMMIT": Cause(
        "a transaction that is still open holds offsets of the group",
        "Clients ask again by themselves, until the transaction has ended.",
        producers.open_transactions,
    ),
    "STALE_MEMBER_EPOCH": Cause(
        "the member's epoch is not the one that the coordinator has",
        "The consumer goes on with the epoch of its next heartbeat; a commit is then sent again.",
        groups.member_epoch,
    ),
    "FENCED_MEMBER_EPOCH": Cause(
        "the coordinator has fenced the member",
        "The consumer gives its partitions up and joins again by itself.",
        groups.member_epoch,
    ),
    # sessions and quotas
    "FETCH_SESSION_ID_NOT_FOUND": Cause(
        "the broker does not know the fetch session, or not any more",
        "Clients begin a new session by themselves and lose nothing. Where it is frequent, a"
        " larger max.incremental.fetch.session.cache.slots of the brokers helps.",
        cluster.fetch_session,
    ),
    "INVALID_FETCH_SESSION_EPOCH": Cause(
        "the request is not the one that is due in its fetch session",
        "Clients begin a new session by themselves and lose nothing.",
        cluster.fetch_session,
    ),
    "THROTTLING_QUOTA_EXCEEDED": Cause(
        "a quota for changes of topics is used up",
        "Clients wait and ask again by themselves; the quota is controller_mutation_rate.",
        _throttle_time,
    ),
}
"""Error → its cause."""
