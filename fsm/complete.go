package fsm

import (
	"strings"

	storagev1 "github.com/carillon-scheduler/carillon/proto/carillon/storage/v1"
)

func (a *apply) completions(c *storagev1.Completions) Result {
	if len(c.Items) > MaxBatch {
		return Result{Refusal: refuseField("items", "more than %d", MaxBatch)}
	}
	items := make([]Item, len(c.Items))
	for i, item := range c.Items {
		items[i] = a.complete(item)
	}
	return Result{Items: items}
}

// complete ends a lease as its holder says, once. The token is its identity: the same word again gets the same answer, a
// word under a token that is not valid is recorded and not applied.
func (a *apply) complete(c *storagev1.Completion) Item {
	id, err := ParseExecutionID(c.ExecutionId)
	if err != nil {
		return Item{Refusal: refuseField("execution_id", "malformed")}
	}
	switch c.Outcome {
	case storagev1.Outcome_OUTCOME_SUCCEEDED, storagev1.Outcome_OUTCOME_FAILED, storagev1.Outcome_OUTCOME_FAILED_FINAL,
		storagev1.Outcome_OUTCOME_SNOOZED, storagev1.Outcome_OUTCOME_RELEASED:
	default:
		return Item{Refusal: refuseField("outcome", "not one a worker reports")}
	}
	if c.UntilMs != 0 && !isInstant(c.UntilMs) {
		return Item{Refusal: refuseField("until", "out of range")}
	}
	if !isDuration(c.RetryAfterMs) {
		return Item{Refusal: refuseField("retry_after", "out of range")}
	}
	e := a.leased(c.Fencing, &id)
	if e == nil {
		return a.completeStale(c, &id)
	}
	digest := completionDigest(c)
	if e.CancelRequested {
		return a.completeCancelled(e, c, digest)
	}
	item := Item{State: a.settle(e, c, digest)}
	item.Refusal = refuseResult(c)
	return item
}

// refuseResult says that a result is too large: its attempt has failed, and a retry of the word hears the same.
func refuseResult(c *storagev1.Completion) *Refusal {
	if len(c.Result) > MaxResultBytes {
		return refuseField("result", "more than %d bytes: the attempt has failed", MaxResultBytes)
	}
	return nil
}

// errorResultSize is the error of an attempt whose result was too large. It stands in rows: a promise, as errorLeaseLost
// is, apart from the refusal's wording and from MaxResultBytes.
const errorResultSize = "result is more than 262144 bytes: the attempt has failed"

// settle applies a valid completion and returns where the execution went.
func (a *apply) settle(e *storagev1.Execution, c *storagev1.Completion, digest uint64) storagev1.ExecutionState {
	outcome, message := c.Outcome, clip(c.Error)
	if refuseResult(c) != nil {
		outcome, message = storagev1.Outcome_OUTCOME_FAILED, errorResultSize
	}
	at := a.recordAttempt(e, outcome, message, digest)
	if outcome == storagev1.Outcome_OUTCOME_RELEASED {
		a.emit(storagev1.EventType_EVENT_TYPE_RELEASED, e)
	}
	attempt := e.Attempt
	a.dropLease(e)
	switch outcome {
	case storagev1.Outcome_OUTCOME_SUCCEEDED:
		at.State = storagev1.ExecutionState_EXECUTION_STATE_SUCCEEDED
		e.Result, e.Error = c.Result, ""
		a.meta.SucceededTotal++
		a.putEnded(e, at.State)
	case storagev1.Outcome_OUTCOME_RELEASED:
		// Not counted: the next delivery has the same number.
		e.Attempt--
		a.again(e, at, nil)
	case storagev1.Outcome_OUTCOME_SNOOZED:
		// Attempt numbers go on, the budget is not used.
		e.BudgetBase++
		a.waitUntil(e, at, max(c.UntilMs, a.stamp), storagev1.EventType_EVENT_TYPE_SNOOZED)
	default:
		e.Error = message
		a.meta.FailedTotal++
		if outcome == storagev1.Outcome_OUTCOME_FAILED_FINAL || budgetSpent(e) {
			at.State = storagev1.ExecutionState_EXECUTION_STATE_DEAD
			a.putDead(e)
			break
		}
		a.meta.RetriedTotal++
		until := a.stamp + c.RetryAfterMs
		if !c.HasRetryAfter {
			id := IdentityOf(e)
			until = a.stamp + retryDelay(e.Template.GetRetry(), &id, attempt-e.BudgetBase, attempt)
		}
		a.waitUntil(e, at, max(until, a.stamp), storagev1.EventType_EVENT_TYPE_RETRYING)
	}
	return at.State
}

// waitUntil lets e wait for its next attempt, or makes it ready at once when there is nothing to wait for.
func (a *apply) waitUntil(e *storagev1.Execution, at *storagev1.Attempt, untilMS int64, event storagev1.EventType) {
	if untilMS <= a.stamp || a.ends(e) {
		a.again(e, at, nil)
		return
	}
	at.State = storagev1.ExecutionState_EXECUTION_STATE_RETRYING
	a.putRetrying(e, untilMS, event)
}

// ends says whether e is to end instead of being tried again: its job is deleted, or a later occurrence takes its place.
func (a *apply) ends(e *storagev1.Execution) bool {
	return a.m.stopOf(e) == storagev1.JobState_JOB_STATE_DELETED || a.superseded(e)
}

// again lets e run again at once, unless it is to end.
func (a *apply) again(e *storagev1.Execution, at *storagev1.Attempt, d *matcher) {
	at.State = storagev1.ExecutionState_EXECUTION_STATE_READY
	if a.ends(e) {
		at.State = storagev1.ExecutionState_EXECUTION_STATE_CANCELLED
	}
	a.admit(e, d)
}

// completeCancelled ends an execution whose holder was told to stop. Whatever it says, cancelled is what it is: a success
// came too late and is recorded, not applied.
func (a *apply) completeCancelled(e *storagev1.Execution, c *storagev1.Completion, digest uint64) Item {
	outcome := storagev1.Outcome_OUTCOME_CANCELLED
	if c.Outcome == storagev1.Outcome_OUTCOME_SUCCEEDED {
		outcome = storagev1.Outcome_OUTCOME_LATE
	}
	a.recordAttempt(e, outcome, clip(c.Error), digest).State = storagev1.ExecutionState_EXECUTION_STATE_CANCELLED
	a.dropLease(e)
	a.putEnded(e, storagev1.ExecutionState_EXECUTION_STATE_CANCELLED)
	if outcome == storagev1.Outcome_OUTCOME_LATE {
		a.meta.StaleTotal++
	}
	return cancelledItem(outcome)
}

func cancelledItem(outcome storagev1.Outcome) Item {
	item := Item{State: storagev1.ExecutionState_EXECUTION_STATE_CANCELLED}
	if outcome == storagev1.Outcome_OUTCOME_LATE {
		item.Refusal = refuse(FailedPrecondition, "the execution was cancelled: the success is recorded, not applied")
	}
	return item
}

// completeStale answers a word under a token that is not valid now: the retry of one that was accepted, another word
// after one that was (a conflict), or one that comes too late. The hint says where the execution stands.
func (a *apply) completeStale(c *storagev1.Completion, id *Identity) Item {
	if c.Fencing > a.meta.Fencing || c.Fencing == 0 {
		return Item{Refusal: refuse(FailedPrecondition, "lease token %d was never granted", c.Fencing)}
	}
	_, e := readHint(a.s, c.Hint)
	if e == nil || IdentityOf(e) != *id {
		return Item{Refusal: refuse(Moved, "the lease is not there; the execution has to be found")}
	}
	digest := completionDigest(c)
	for _, at := range e.Attempts {
		if at.Fencing != c.Fencing || at.Digest == 0 {
			continue
		}
		if at.Digest == digest {
			a.meta.DuplicatesTotal++
			item := Item{State: at.State, Refusal: refuseResult(c)}
			if at.Outcome == storagev1.Outcome_OUTCOME_LATE {
				item = cancelledItem(at.Outcome)
			}
			return item
		}
		a.meta.ConflictsTotal++
		a.putLate(e, c, digest)
		conflict := refuse(AlreadyExists, "this lease was completed with another outcome")
		conflict.Fields = []string{"outcome"}
		return Item{State: e.State, Refusal: conflict}
	}
	a.meta.StaleTotal++
	a.putLate(e, c, digest)
	return Item{State: e.State, Refusal: refuse(FailedPrecondition, "lease token %d is no longer valid", c.Fencing)}
}

// putLate records a word that was refused, with the outcome it reported, in a row of its own: the execution is not
// touched.
func (a *apply) putLate(e *storagev1.Execution, c *storagev1.Completion, digest uint64) {
	id := IdentityOf(e)
	late := &storagev1.Execution{
		Incarnation: e.Incarnation, Kind: e.Kind, NominalMs: e.NominalMs, Discriminator: e.Discriminator,
		JobVersion: e.JobVersion, State: e.State,
		Attempts: []*storagev1.Attempt{{
			Fencing: c.Fencing, Worker: c.Worker, EndedMs: a.meta.ClockMs, Outcome: c.Outcome, Error: clip(c.Error),
			Digest: digest,
		}},
	}
	a.s.Set(lateKey(a.bucket(e), &id, c.Fencing), mustEncode(late.MarshalVT()))
	a.emit(storagev1.EventType_EVENT_TYPE_LATE_ATTEMPT, e).Fencing = c.Fencing
}

// readHint reads the execution that stands at a row key; nil when none does.
func readHint(r Reader, key []byte) (kind byte, e *storagev1.Execution) {
	var id Identity
	var ok bool
	if len(key) == 0 {
		return 0, nil
	}
	switch key[0] {
	case KindTimer:
		var t timerKey
		t, ok = parseTimerKey(key)
		ok = ok && (t.kind == TimerOneShot || t.kind == TimerRetry)
		id = t.id
	case KindReady:
		id, _, _, _, ok = parseReadyKey(key)
	case KindLeased:
		ok = len(key) == 9
	case KindHeld, KindDead:
		id, ok = parseIdentKey(key, key[0])
	case KindEnded:
		var ref endedRef
		ref, ok = parseEndedKey(key)
		_, isExecution := charKind(ref.char)
		ok = ok && isExecution
		id = ref.id
	}
	if !ok {
		return 0, nil
	}
	value, ok := r.Get(key)
	if !ok {
		return 0, nil
	}
	e = decodeExecution(key, value)
	if key[0] != KindLeased && key[0] != KindReady {
		name(e, &id)
	}
	return key[0], e
}

// clip bounds an error message.
func clip(s string) string {
	if len(s) > maxErrorBytes {
		s = s[:maxErrorBytes]
	}
	return strings.ToValidUTF8(s, "\uFFFD")
}
