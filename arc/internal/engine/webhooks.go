// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"math"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/fivewire/fivewire/arc/internal/wire"
	"github.com/fivewire/fivewire/internal/budget"
	"github.com/fivewire/fivewire/internal/guard"
	"github.com/fivewire/fivewire/internal/jsonmap"
	"github.com/fivewire/fivewire/internal/outbox"
	"github.com/fivewire/fivewire/internal/randid"
	"github.com/fivewire/fivewire/internal/retry"
	"github.com/fivewire/fivewire/internal/strictjson"
	"github.com/fivewire/fivewire/store"
)

// WebhookOptions are the options of the sending of notifications.
type WebhookOptions struct {
	Static []Subscription // to all tasks: ID, URL, Target and Events

	// Deliver makes an attempt. Its error is a [StatusError], or wraps [ErrRefused] if another attempt would fail, too,
	// or [ErrNotHere].
	Deliver func(ctx context.Context, d *Delivery) error

	OnDeadLetter func(ctx context.Context, l Letter) // nil means none; a panic is logged

	MaxAttempts              int // of the first queue; negative without a second one
	Base, Max, MaxRetryAfter time.Duration
	IsExact                  bool // no jitter
}

// A StatusError is an answer of a receiver that is not 2xx.
type StatusError int

// Error names the status.
func (e StatusError) Error() string {
	return fmt.Sprintf("arc: webhook answered HTTP status %d", int(e))
}

// ErrRefused is wrapped by errors of attempts that are not worth another one.
var ErrRefused = errors.New("arc: webhook refused")

// ErrNotHere is the error of an attempt that only another process can make.
var ErrNotHere = errors.New("arc: webhook: unknown dialect")

const statusGone = StatusError(410)

// IsRetryable reports whether an attempt may succeed when it is repeated.
func IsRetryable(err error) bool {
	if status, ok := errors.AsType[StatusError](err); ok {
		return status == 408 || status == 429 || status >= 500
	}
	return !errors.Is(err, ErrRefused)
}

// Delay returns the time to the next attempt: d with jitter, or the time that the receiver requests.
func (o *WebhookOptions) Delay(d time.Duration, err error) time.Duration {
	if !o.IsExact {
		d += time.Duration((randid.Rand().Float64() - 0.5) * 0.4 * float64(d))
	}
	return max(d, min(retry.After(err), o.MaxRetryAfter))
}

// A Delivery is one notification to one webhook. The body is the complete ARC request of ARC-D42, with the same id on
// every attempt.
type Delivery struct {
	ID             string          `json:"id"`  // X-ARC-Delivery
	SubscriptionID string          `json:"sub"` // X-ARC-Subscription
	URL            string          `json:"url"`
	Event          string          `json:"event"`
	Agent          string          `json:"agent"`  // the processor, whose token may go with it
	Target         string          `json:"target"` // the subscriber's requestAgent
	TraceID        string          `json:"traceId,omitempty"`
	Body           json.RawMessage `json:"body"`

	TaskID   string   `json:"task,omitempty"`
	IsStatic bool     `json:"static,omitempty"`
	Dialect  *Dialect `json:"dialect,omitempty"`

	// In the second queue: the attempts before, the age when it was put there, and the time to the first attempt.
	Attempts int           `json:"attempts,omitempty"`
	Age      time.Duration `json:"age,omitempty"`
	Wait     time.Duration `json:"wait,omitempty"`
}

// A Letter is a notification that was given up.
type Letter struct {
	Delivery
	ID  string // for Redeliver and Discard; empty if the queue was full
	Err error  // of the last attempt
}

// The kinds of the two queues of a subscription (ARC-D44). A notification whose first attempts fail moves to the second
// one, so that the next ones are sent.
const (
	webhookKind = "webhook"
	lateKind    = "webhook-late"
)

// The bounds of a subscription: undelivered notifications and their bytes, beyond which messages and artifacts become
// dead letters at once; notifications of any kind; kept dead letters; and the age at which a notification is given up.
const (
	maxWebhookItems   = 10_000
	maxWebhookBytes   = 64 << 20
	maxWebhookEvents  = 100_000
	maxWebhookLetters = 10_000
	maxWebhookAge     = 23 * time.Hour
)

// The reasons of dead letters without a last attempt.
const (
	reasonEnded = "subscription ended"
	reasonAge   = "maximum age reached"
)

// lateDelays are the delays before the attempts of the second queue.
var lateDelays = [...]time.Duration{time.Minute, 5 * time.Minute, 30 * time.Minute, 2 * time.Hour, 6 * time.Hour, 12 * time.Hour}

// storeDelay is the delay after a failure of the store.
const storeDelay = 5 * time.Second

// Webhooks store and send notifications. The processes that share a store have one sender for each queue.
type Webhooks struct {
	*core
	box   *outbox.Outbox
	hosts hostTurns

	// Functions of the tasks: the end of a subscription or nil, its making, and its removal for a dead letter.
	endOf  func(ctx context.Context, taskID, id string) (*endedSub, error)
	end    func(ctx context.Context, taskID, id string) error
	reopen func(ctx context.Context, taskID, id string) error
}

func newWebhooks(c *core) *Webhooks {
	w := &Webhooks{core: c, box: outbox.New(c.db, c.lease, outbox.Options{Prefix: prefix, Logger: c.log, MaxAge: maxWebhookAge + time.Hour,
		MaxItems: maxWebhookEvents, MaxBytes: 4 * maxWebhookBytes, MaxLetters: maxWebhookLetters})}
	w.hosts.notify = w.box.Wake
	return w
}

// open starts the senders of this process. They adopt the queues of failed processes.
func (w *Webhooks) open() {
	w.box.Send(webhookKind, w.serve)
	w.box.Send(lateKind, w.serve)
}

// close ends sending. The rest is left to other processes.
func (w *Webhooks) close(ctx context.Context) {
	if err := w.box.Shutdown(ctx); err != nil {
		w.log.WarnContext(ctx, "arc: webhook attempts cut", "err", err)
	}
}

// stream returns the name of the first queue of a subscription, and lateStream that of the second one.
func (s *Subscription) stream() string {
	if s.isStatic {
		return webhookKind + "/static/" + s.ID
	}
	return webhookKind + "/" + s.ID
}

func lateStream(stream string) string { return lateKind + strings.TrimPrefix(stream, webhookKind) }

func isLate(stream string) bool { return strings.HasPrefix(stream, lateKind+"/") }

// putAll stores the pending events of a task that a subscription wants, from number first. The numbers make a second
// put of an event have no effect. An event without space becomes a dead letter.
func (w *Webhooks) putAll(ctx context.Context, r *record, sub *Subscription, first uint64) error {
	for i, event := range r.Pending {
		n := r.PendingFrom + uint64(i)
		name, _ := strictjson.Value(event).Get("event").Text()
		if n < max(first, sub.From) || !slices.Contains(sub.Events, name) {
			continue
		}
		if err := w.put(ctx, r, sub, n, name, event); err != nil {
			return err
		}
	}
	return nil
}

func (w *Webhooks) put(ctx context.Context, r *record, sub *Subscription, n uint64, name string, event []byte) error {
	id := strconv.FormatUint(n, 10)
	if sub.isStatic {
		id = r.ID + "/" + id // the queue is shared by all tasks
	}
	d := &Delivery{ID: randid.New("req-"), SubscriptionID: sub.ID, TaskID: r.ID, IsStatic: sub.isStatic, URL: sub.URL, Event: name,
		Agent: r.Agent, Target: sub.Target, TraceID: sub.TraceID, Dialect: sub.Dialect}
	o := wire.Open(make([]byte, 0, 256+len(event)))
	o.Text("arc", "1.0")
	o.Text("id", d.ID)
	o.Text("method", "task.notification")
	o.Text("requestAgent", d.Agent)
	o.Text("targetAgent", d.Target)
	o.OptText("traceId", d.TraceID)
	o.Raw("params", event)
	d.Body = o.Close()
	data, _ := jsonmap.Append(nil, d) // it has valid text only
	isContent := name == "NEW_MESSAGE" || name == "NEW_ARTIFACT"
	var err error
	if isContent {
		err = w.hasSpace(ctx, sub.stream())
	}
	if err == nil {
		if err = w.count(d, len(data)); !isContent {
			err = nil // changes of state are stored beyond the budget
		}
	}
	if err == nil {
		if err = w.box.Put(ctx, sub.stream(), id, data); err != nil {
			_ = w.count(d, -len(data)) // always succeeds
		}
	}
	_, isFull := errors.AsType[*budget.Error](err)
	if isFull || errors.Is(err, errTooMany) {
		w.giveUp(ctx, d, "", 0, err)
		return nil
	}
	return err
}

var errTooMany = errors.New("arc: too many notifications wait")

// hasSpace returns an error if so much waits for a subscription that messages and artifacts are given up.
func (w *Webhooks) hasSpace(ctx context.Context, stream string) error {
	items, bytes, err := w.box.Waiting(ctx, stream)
	late, lateBytes, lateErr := w.box.Waiting(ctx, lateStream(stream))
	if err = cmp.Or(err, lateErr); err == nil && (items+late >= maxWebhookItems || bytes+lateBytes >= maxWebhookBytes) {
		err = errTooMany
	}
	return err
}

// removedKey is the key of a removed subscription with waiting notifications or dead letters, and letterKey that of one with
// dead letters.
func removedKey(id string) string { return prefix + "removed/" + id }

func letterKey(id string) string { return prefix + "letter/" + id }

// noteRemoved notes that the waiting notifications and dead letters of a subscription are not sent. The task notes that too,
// but it may be removed before, or have too many notes.
func (w *Webhooks) noteRemoved(ctx context.Context, id string) error {
	_, err := w.db.Get(ctx, letterKey(id))
	hasItems, life := err == nil, outbox.DeadTTL
	if errors.Is(err, store.ErrNotFound) {
		stream := (&Subscription{ID: id}).stream()
		life = maxWebhookAge + time.Hour
		if hasItems, err = w.box.Has(ctx, stream); err == nil && !hasItems {
			hasItems, err = w.box.Has(ctx, lateStream(stream))
		}
	}
	if err == nil && hasItems {
		_, err = w.db.Create(ctx, removedKey(id), nil, life)
	}
	if errors.Is(err, store.ErrExists) {
		return nil
	}
	return err
}

// noteLetter notes that a subscription that can be removed has a dead letter.
func (w *Webhooks) noteLetter(ctx context.Context, d *Delivery) error {
	if d.Dialect == nil {
		return nil
	}
	_, err := w.modify(ctx, letterKey(d.SubscriptionID), outbox.DeadTTL, func(store.Entry, bool) ([]byte, error) { return []byte{}, nil })
	return err
}

// count counts bytes of waiting notifications for the owner of a task. In a store that processes share, only the bounds
// of a queue limit them.
func (w *Webhooks) count(d *Delivery, n int) error {
	if w.isShared || d.IsStatic {
		return nil
	}
	err := w.ledger.grow(taskObject, d.TaskID, n)
	if f, ok := errors.AsType[*wire.Fault](err); ok {
		return f.Cause
	}
	return err
}

// serve makes an attempt for the first item of a queue.
func (w *Webhooks) serve(ctx context.Context, item outbox.Item) outbox.Verdict {
	d := new(Delivery)
	if err := wire.DecodeStored(item.Data, d); err != nil {
		return outbox.Dead("record not readable", err)
	}
	waited := max(time.Since(item.First), 0)
	age := d.Age + waited
	turn := &hostTurn{hostTurns: &w.hosts, host: hostOf(d.URL), stream: item.Stream}
	defer turn.end()
	var end *endedSub
	var err error
	if !d.IsStatic {
		end, err = w.endOf(ctx, d.TaskID, d.SubscriptionID)
	}
	switch {
	case err != nil:
		return outbox.Later(storeDelay, err)
	case end != nil && end.IsRemoved:
		_ = w.count(d, -len(item.Data)) // always succeeds
		return outbox.Done()
	case end != nil:
		return w.dead(ctx, item, d, reasonEnded, statusGone)
	case age >= maxWebhookAge:
		return w.dead(ctx, item, d, reasonAge, nil)
	case isLate(item.Stream) && item.Attempt == 1 && waited < d.Wait:
		return outbox.Later(d.Wait-waited, nil)
	}
	delay, err := turn.enter()
	if turn.isWaiting {
		return outbox.Later(min(delay, maxWebhookAge-age), err)
	}
	err = guard.Call("webhook attempt", func() error { return w.opts.Webhooks.Deliver(ctx, d) })
	switch {
	case ctx.Err() != nil:
		turn.record(context.Canceled)
		return outbox.Later(0, ctx.Err())
	case errors.Is(err, ErrNotHere):
		turn.record(context.Canceled)
		return outbox.Later(storeDelay, err)
	case err != nil && IsRetryable(err):
		turn.record(retry.Mark(err, retry.Unknown, 0))
		return w.repeat(ctx, item, d, age, err)
	}
	turn.record(nil)
	switch {
	case err == nil:
		_ = w.count(d, -len(item.Data)) // always succeeds
		return outbox.Done()
	case errors.Is(err, statusGone) && d.IsStatic:
		w.giveUp(ctx, d, letterID(item.Stream, item.Seq), d.Attempts+item.Attempt, err)
		return outbox.Gone(err)
	case errors.Is(err, statusGone):
		if failed := w.end(ctx, d.TaskID, d.SubscriptionID); failed != nil {
			return outbox.Later(storeDelay, failed)
		}
	}
	return w.dead(ctx, item, d, "refused", err)
}

// hostOf returns the host of a URL, which is the key of its circuit breaker.
func hostOf(rawURL string) string {
	u, err := url.Parse(rawURL)
	if err != nil {
		return ""
	}
	return strings.ToLower(u.Host)
}

// repeat returns the time of the next attempt after a failure, by the schedule of ARC-D44.
func (w *Webhooks) repeat(ctx context.Context, item outbox.Item, d *Delivery, age time.Duration, err error) outbox.Verdict {
	w.log.DebugContext(ctx, "arc: webhook attempt failed", "subscription", d.SubscriptionID,
		"delivery", d.ID, "attempt", d.Attempts+item.Attempt, "err", err)
	o := &w.opts.Webhooks
	limit := maxWebhookAge
	if o.Max > 0 {
		limit = min(o.Max, limit)
	}
	delay := time.Duration(min(math.Ldexp(float64(o.Base), item.Attempt-1), float64(limit)))
	switch isLate := isLate(item.Stream); {
	case isLate && item.Attempt < len(lateDelays):
		delay = lateDelays[item.Attempt]
	case isLate:
		return w.dead(ctx, item, d, "attempts used up", err)
	case item.Attempt >= o.MaxAttempts || w.hasLate(ctx, item.Stream):
		return w.move(ctx, item, d, age, err)
	}
	return outbox.Retry(max(min(w.opts.Webhooks.Delay(delay, err), maxWebhookAge-age), time.Nanosecond), err)
}

// hasLate reports whether the second queue of a subscription has items.
func (w *Webhooks) hasLate(ctx context.Context, stream string) bool {
	items, _, err := w.box.Waiting(ctx, lateStream(stream))
	return err == nil && items > 0
}

// move puts an item into the second queue.
func (w *Webhooks) move(ctx context.Context, item outbox.Item, d *Delivery, age time.Duration, err error) outbox.Verdict {
	if w.opts.Webhooks.MaxAttempts < 0 {
		return w.dead(ctx, item, d, "attempts used up", err)
	}
	late := *d
	late.Attempts, late.Age, late.Wait = item.Attempt, age, w.opts.Webhooks.Delay(lateDelays[0], err)
	data, _ := jsonmap.Append(nil, &late) // it was read before
	failed := w.box.Put(ctx, lateStream(item.Stream), item.ID, data)
	if _, isFull := errors.AsType[*budget.Error](failed); isFull {
		return w.dead(ctx, item, d, "queue full", err)
	}
	if failed != nil {
		return outbox.Retry(storeDelay, errors.Join(err, failed))
	}
	return outbox.Done()
}

// dead gives up an item.
func (w *Webhooks) dead(ctx context.Context, item outbox.Item, d *Delivery, reason string, err error) outbox.Verdict {
	if failed := w.noteLetter(ctx, d); failed != nil {
		return outbox.Later(storeDelay, errors.Join(err, failed))
	}
	_ = w.count(d, -len(item.Data)) // always succeeds
	w.giveUp(ctx, d, letterID(item.Stream, item.Seq), d.Attempts+made(item.Attempt, reason), cmp.Or(err, errors.New("arc: webhook: "+reason)))
	return outbox.Dead(reason, err)
}

// made returns the number of attempts of a dead letter. The queue counts its last call of serve, which made an attempt
// only for some reasons.
func made(n int, reason string) int {
	if reason == reasonEnded || reason == reasonAge {
		return n - 1
	}
	return n
}

// giveUp reports an abandoned notification.
func (w *Webhooks) giveUp(ctx context.Context, d *Delivery, id string, attempts int, err error) {
	w.log.WarnContext(ctx, "arc: webhook notification abandoned", "subscription", d.SubscriptionID,
		"delivery", d.ID, "event", d.Event, "attempts", attempts, "err", err)
	if w.opts.Webhooks.OnDeadLetter != nil {
		l := Letter{*d, id, err}
		l.Attempts = attempts
		w.opts.Webhooks.OnDeadLetter(ctx, l)
	}
}

// DeadLetters iterates over the notifications that were given up, of all processes that share the store. An error
// comes once and last.
func (w *Webhooks) DeadLetters(ctx context.Context) iter.Seq2[Letter, error] {
	return func(yield func(Letter, error) bool) {
		for l, err := range w.box.Dead(ctx) {
			if err != nil {
				yield(Letter{}, err)
				return
			}
			letter := Letter{ID: letterID(l.Stream, l.Seq), Err: errors.New(cmp.Or(l.Last, l.Reason))}
			if wire.DecodeStored(l.Data, &letter.Delivery) != nil {
				continue // logged when it was given up
			}
			letter.Attempts += made(l.Attempt, l.Reason)
			if !yield(letter, nil) {
				return
			}
		}
	}
}

// Redeliver queues a dead letter again, with all attempts, also after the end of its subscription by status 410.
func (w *Webhooks) Redeliver(ctx context.Context, id string) error {
	stream, seq, err := parseLetterID(id)
	if err != nil {
		return err
	}
	l, err := w.box.Find(ctx, stream, seq)
	d := new(Delivery)
	if err == nil {
		err = wire.DecodeStored(l.Data, d)
	}
	if err == nil && !d.IsStatic {
		err = w.reopen(ctx, d.TaskID, d.SubscriptionID)
	}
	if err != nil {
		return err
	}
	return w.box.Redeliver(ctx, stream, seq)
}

// Discard removes a dead letter.
func (w *Webhooks) Discard(ctx context.Context, id string) error {
	stream, seq, err := parseLetterID(id)
	if err != nil {
		return err
	}
	return w.box.Drop(ctx, stream, seq)
}

func letterID(stream string, seq uint64) string { return stream + "#" + strconv.FormatUint(seq, 10) }

func parseLetterID(id string) (stream string, seq uint64, err error) {
	i := strings.LastIndexByte(id, '#')
	if i >= 0 {
		seq, err = strconv.ParseUint(id[i+1:], 10, 64)
	}
	if i < 0 || err != nil || !strings.HasPrefix(id, webhookKind) {
		return "", 0, fmt.Errorf("no dead letter %q: %w", id, store.ErrNotFound)
	}
	return id[:i], seq, nil
}
