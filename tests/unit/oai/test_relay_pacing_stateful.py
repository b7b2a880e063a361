"""Relay and pacing together, driven through random streams: what the client holds is always true.

The Horde here is hostile: any attempt, any number, markers whenever, final replies that fit or not.
"""

import regex
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from horde.oai.delta_entry import DeltaEntry
from horde.oai.pacing import Pacer
from horde.oai.relay import DeltaRelay, Piece

GENS = ["g1", "g2", "g3"]
texts = st.text(st.sampled_from([*"abc  ", *"é漢", "\u0301", "\u200d", "👩", "🇩", "🇪"]), max_size=40)


class RelayedStream(RuleBasedStateMachine):
    """One client after another, their Horde, and a record of everything that happened to the present one."""

    @initialize(include_reasoning=st.booleans(), paced=st.booleans())
    def start(self, *, include_reasoning: bool, paced: bool) -> None:
        self.include_reasoning = include_reasoning
        self.relay = DeltaRelay(include_reasoning=include_reasoning)
        self.pacer = Pacer(enabled=paced)
        self.now = 0.0
        self.stream: list[DeltaEntry] = []
        self.unread: list[DeltaEntry] = []
        self.posts: list[str] = []
        self.sent: list[Piece] = []
        self.arrivals: list[tuple[int, float]] = []
        self.gen_at_exposure: str | None = None

    # What the Horde writes

    def write(self, entry: DeltaEntry) -> None:
        self.stream.append(entry)
        self.unread.append(entry)

    @rule(posts=st.lists(st.tuples(texts, texts, st.booleans(), st.floats(0, 3)), min_size=1, max_size=4))
    def an_attempt_goes_on(self, posts: list[tuple[str, str, bool, float]]) -> None:
        gen = self.stream[-1].gen if self.stream else GENS[0]
        for text, reasoning, is_read, seconds in posts:
            seq = 1 + sum(entry.gen == gen and not entry.is_marker for entry in self.stream)
            self.write(DeltaEntry("1-0", gen, seq, text, reasoning))
            if is_read:
                self.read(streams=1)
                self.wait(seconds)

    @rule(text=texts, reasoning=texts, gen=st.sampled_from(GENS), step=st.just(1) | st.integers(-2, 3))
    def any_post(self, text: str, reasoning: str, gen: str, step: int) -> None:
        latest = self.stream[-1].seq if self.stream else 0
        self.write(DeltaEntry("1-0", gen, max(latest + step, 1), text, reasoning))
        self.read(streams=1)

    @rule(gen=st.sampled_from(GENS))
    def a_marker(self, gen: str) -> None:
        self.write(DeltaEntry("1-0", gen, ended="lease_expired"))

    # What the front does

    @rule(streams=st.integers(1, 5000))
    def read(self, streams: int) -> None:
        entries, self.unread = self.unread, []
        was_diverged = self.relay.diverged
        pieces = self.relay.feed(entries)
        if self.relay.diverged:
            assert pieces == []
            self.pacer.discard()
        assert not (was_diverged and not self.relay.diverged)
        for piece in pieces:
            self.posts.append(piece.text)
            self.pacer.add(self.now, piece, active_streams=streams)
            self.arrivals.append((sum(map(len, self.posts)), self.now + self.pacer.interval_seconds))
        self.send()

    @rule(seconds=st.floats(0, 3))
    def wait(self, seconds: float) -> None:
        until = self.now + seconds
        while (due := self.pacer.next_due()) is not None and due <= until:
            self.now = max(self.now, due)
            self.send()
        self.now = until

    def send(self) -> None:
        for piece in self.pacer.pop_due(self.now):
            assert piece
            assert not self.relay.diverged
            self.relay.mark_sent(piece)
            self.sent.append(piece)

    @rule(
        rest=texts,
        cut=st.just(0) | st.integers(0, 3),
        gen=st.none() | st.sampled_from(GENS),
        of_pinned=st.booleans(),
        reasoning=st.none() | texts,
        include_reasoning=st.booleans(),
        paced=st.booleans(),
    )
    def finish(
        self,
        *,
        rest: str,
        cut: int,
        gen: str | None,
        of_pinned: bool,
        reasoning: str | None,
        include_reasoning: bool,
        paced: bool,
    ) -> None:
        """Get a final reply that continues what was relayed, cuts it short, or is something else; then begin anew."""
        relayed, sent = "".join(self.posts), self.sent_text()
        text = relayed[: len(relayed) - cut] + rest
        sent_reasoning = "".join(piece.reasoning for piece in self.sent)
        if reasoning is not None and of_pinned:
            reasoning = sent_reasoning + reasoning
        generation_id = self.relay.gen if of_pinned else gen
        self.pacer.discard()
        reconciled = self.relay.reconcile(generation_id=generation_id, text=text, reasoning=reasoning)
        assert reconciled.outcome is self.relay.outcome
        if reconciled.diverged:
            assert not reconciled.rest
        else:
            assert sent + reconciled.rest.text == text
            assert (reconciled.outcome is None) == (not self.relay.exposed)
            assert not self.relay.exposed or generation_id in {None, self.relay.gen}
            assert not reconciled.rest.reasoning or sent_reasoning + reconciled.rest.reasoning == reasoning
        self.start(include_reasoning=include_reasoning, paced=paced)

    # What always holds

    def sent_text(self) -> str:
        return "".join(piece.text for piece in self.sent)

    def attempt(self, gen: str | None) -> list[DeltaEntry]:
        """Return the posts 1, 2, 3, … of an attempt, up to its first gap or end."""
        posts: list[DeltaEntry] = []
        for entry in self.stream:
            if entry.gen != gen:
                continue
            if not posts and entry.seq != 1:
                continue
            if entry.seq != len(posts) + 1:
                break
            posts.append(entry)
        return posts

    @invariant()
    def what_was_sent_is_the_beginning_of_one_attempt(self) -> None:
        posts = self.attempt(self.relay.gen)
        assert "".join(post.text for post in posts).startswith(self.sent_text())
        reasoning = "".join(piece.reasoning for piece in self.sent)
        assert "".join(post.reasoning for post in posts).startswith(reasoning)
        assert self.include_reasoning or not reasoning

    @invariant()
    def an_exposed_attempt_never_changes(self) -> None:
        if self.gen_at_exposure is None and self.relay.exposed:
            self.gen_at_exposure = self.relay.gen
        assert self.gen_at_exposure in {None, self.relay.gen}
        assert not self.sent or self.relay.exposed

    @invariant()
    def nothing_waits_longer_than_an_interval(self) -> None:
        if not self.relay.diverged:
            sent = len(self.sent_text())
            assert all(end <= sent for end, deadline in self.arrivals if deadline < self.now)

    @invariant()
    def no_grapheme_cluster_is_cut_within_a_post(self) -> None:
        allowed, position = set(), 0
        for cluster in regex.findall(r"\X", "".join(self.posts)):
            position += len(cluster)
            allowed.add(position)
        position = 0
        for post in self.posts:
            position += len(post)
            allowed.add(position)
        position = 0
        for piece in self.sent:
            position += len(piece.text)
            assert position in allowed or not position


TestRelayedStream = RelayedStream.TestCase
TestRelayedStream.settings = settings(max_examples=200, stateful_step_count=40, deadline=None)
