// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package arc

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/fivewire/fivewire/internal/budget"
	"github.com/fivewire/fivewire/internal/guard"
	"github.com/fivewire/fivewire/internal/lease"
	"github.com/fivewire/fivewire/internal/outbox"
	"github.com/fivewire/fivewire/internal/retry"
	"github.com/fivewire/fivewire/store"
)

// A StaticWebhook follows all tasks of a server (ARC-D41).
type StaticWebhook struct {
	ID          string // unique among those of the server; names it in X-ARC-Subscription
	CallbackURL string
	TargetAgent string  // recipient of the notifications
	Events      []Event // empty means all
}

// A subscription is who follows a task, and where the notifications go.
type subscription struct {
	Subscription
	agent   string // the processor
	target  string // the subscriber's requestAgent
	traceID string
	static  bool // belongs to the server's configuration, not to one task
	isGone  bool // the receiver has answered 410
	dialect dialect

	isRemoved bool // by its subscriber
}

func (sub *subscription) encode() ([]byte, error) {
	return encode(func(w *writer) {
		w.open()
		w.text("subscriptionId", sub.ID)
		w.text("taskId", sub.TaskID)
		w.text("callbackUrl", sub.CallbackURL)
		array(w, "events", sub.Events, element)
		w.text("createdAt", string(sub.CreatedAt))
		w.flag("active", sub.Active)
		w.text("agent", sub.agent)
		w.text("target", sub.target)
		w.optText("traceId", sub.traceID)
		w.optFlag("gone", sub.isGone)
		w.optFlag("removed", sub.isRemoved)
		if sub.dialect.name != "" {
			w.text("dialect", sub.dialect.name)
			w.text("dialectId", sub.dialect.id)
			w.optRaw("dialectData", sub.dialect.data)
		}
		w.close()
	})
}

func decodeSubscription(b []byte) (*subscription, error) {
	r, err := readStored(b)
	if err != nil {
		return nil, err
	}
	sub := &subscription{agent: r.text("agent"), target: r.text("target"), traceID: r.text("traceId")}
	sub.ID, sub.TaskID, sub.CallbackURL = r.text("subscriptionId"), r.text("taskId"), r.text("callbackUrl")
	sub.CreatedAt, sub.Active = Timestamp(r.text("createdAt")), r.flag("active")
	sub.isGone, sub.isRemoved = r.flag("gone"), r.flag("removed")
	sub.dialect = dialect{r.text("dialect"), r.text("dialectId"), bytes.Clone(r.v.Get("dialectData"))}
	for ev := r.v.Get("events").Elements(); ev.Next(); {
		s, _ := ev.Value.Text()
		sub.Events = append(sub.Events, Event(s))
	}
	return sub, nil
}

func (sub *subscription) wants(ev Event) bool { return slices.Contains(sub.Events, ev) }

// stream returns the name of the first queue of a subscription.
func (sub *subscription) stream() string {
	if sub.static {
		return webhookKind + "/static/" + sub.ID
	}
	return webhookKind + "/" + sub.ID
}

// The kinds of the two queues of a subscription (ARC-D44). A notification whose first attempts
// fail moves to the second one, so that the next ones are sent.
const (
	webhookKind = "webhook"
	lateKind    = "webhook-late"
)

// The bounds of a subscription: undelivered notifications and their bytes, beyond which messages
// and artifacts become dead letters at once; notifications of any kind; kept dead letters; and the
// age at which a notification is given up.
const (
	maxWebhookItems   = 10_000
	maxWebhookBytes   = 64 << 20
	maxWebhookEvents  = 100_000
	maxWebhookLetters = 10_000
	maxWebhookAge     = 23 * time.Hour
)

// The reasons of dead letters without a last attempt.
const (
	reasonExpired = "subscription expired"
	reasonEnded   = "subscription ended"
	reasonAge     = "maximum age reached"
)

// lateDelays are the delays before the attempts of the second queue.
var lateDelays = [...]time.Duration{time.Minute, 5 * time.Minute, 30 * time.Minute, 2 * time.Hour, 6 * time.Hour, 12 * time.Hour}

// storeDelay is the delay after a failure of the store.
const storeDelay = 5 * time.Second

// A webhookQueue stores and sends notifications. The processes that share a store have one sender
// for each queue.
type webhookQueue struct {
	s      *Server
	db     store.Store
	send   *webhookSender
	static []StaticWebhook
	box    *outbox.Outbox // set before the first notification
}

func newWebhookQueue(s *Server) (*webhookQueue, error) {
	var w WebhookOptions
	if s.opts.Webhook != nil {
		w = *s.opts.Webhook
	}
	w.logger = s.opts.Logger
	send, err := newWebhookSender(&w)
	if err != nil {
		return nil, err
	}
	return &webhookQueue{s: s, db: s.opts.Persistence.Store, send: send, static: slices.Clone(w.Static)}, nil
}

// open starts the senders of this process. They adopt the queues of failed processes.
func (q *webhookQueue) open(l *lease.Lease) {
	q.box = outbox.New(q.db, l, outbox.Options{Prefix: "arc/", Logger: q.s.opts.Logger, MaxAge: maxWebhookAge + time.Hour,
		MaxItems: maxWebhookEvents, MaxBytes: 4 * maxWebhookBytes, MaxLetters: maxWebhookLetters})
	q.box.Send(webhookKind, q.serve)
	q.box.Send(lateKind, q.serve)
}

// close ends sending. The rest is left to other processes.
func (q *webhookQueue) close(ctx context.Context) {
	if err := q.box.Shutdown(ctx); err != nil {
		q.s.opts.Logger.WarnContext(ctx, "arc: webhook attempts cut", "err", err)
	}
	q.send.close()
}

// retention is how long a subscription is kept from now on.
func (q *webhookQueue) retention() time.Duration { return q.s.opts.Persistence.SubscriptionRetention }

// put stores a notification to be sent. The number of the event makes a second
// put of the same one have no effect.
func (q *webhookQueue) put(ctx context.Context, sub *subscription, number uint64, n *Notification) error {
	id := strconv.FormatUint(number, 10)
	if sub.static {
		id = n.TaskID + "/" + id // the queue is shared by all tasks
	}
	d := &delivery{SubscriptionID: sub.ID, taskID: sub.TaskID, isStatic: sub.static, URL: sub.CallbackURL, Event: n.Event,
		Agent: sub.agent, Target: sub.target, TraceID: sub.traceID}
	record, err := d.encode(n)
	if err != nil {
		return err
	}
	if n.Event == EventNewMessage || n.Event == EventNewArtifact {
		err = q.hasSpace(context.WithoutCancel(ctx), sub.stream())
		if err == nil {
			err = q.count(d, len(record))
		}
		if err != nil {
			q.giveUp(ctx, d, 0, err)
			return err
		}
	} else {
		_ = q.count(d, len(record)) // changes of state are stored beyond the budget
	}
	err = q.store(ctx, sub.stream(), id, record)
	if err != nil {
		_ = q.count(d, -len(record)) // always succeeds
	}
	return err
}

// putAll stores the notifications that a subscription wants, numbered from first.
func (q *webhookQueue) putAll(ctx context.Context, sub *subscription, first uint64, events []*Notification) error {
	var errs error
	for i, n := range events {
		if sub.wants(n.Event) {
			errs = errors.Join(errs, q.put(ctx, sub, first+uint64(i), n))
		}
	}
	return errs
}

// store puts a record into a queue, also after the end of ctx. It waits for a store that does not
// answer for a limited time only.
func (q *webhookQueue) store(ctx context.Context, stream, id string, record []byte) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), outage)
	defer cancel()
	return q.box.Put(ctx, stream, id, record)
}

// hasSpace returns an error if so much waits for a subscription that messages and artifacts are
// given up.
func (q *webhookQueue) hasSpace(ctx context.Context, stream string) error {
	items, bytes, err := q.box.Waiting(ctx, stream)
	late, lateBytes, lateErr := q.box.Waiting(ctx, lateStream(stream))
	if err = cmp.Or(err, lateErr); err == nil && (items+late >= maxWebhookItems || bytes+lateBytes >= maxWebhookBytes) {
		err = errors.New("arc: too many notifications wait")
	}
	return err
}

func lateStream(stream string) string { return lateKind + strings.TrimPrefix(stream, webhookKind) }

// count counts bytes of waiting notifications for the owner of a subscription. In a store that
// processes share, only the bounds of a queue limit them.
func (q *webhookQueue) count(d *delivery, n int) error {
	if q.s.isShared || d.isStatic {
		return nil
	}
	return q.s.ledger.grow(subscriptionObject, subKey(d.taskID, d.SubscriptionID), n)
}

// finish ends the queue of a subscription to a task that has ended: nothing more is put. The
// subscription ends when all is sent (e.4).
func (q *webhookQueue) finish(ctx context.Context, sub *subscription) {
	if sub.static {
		return
	}
	d := &delivery{SubscriptionID: sub.ID, taskID: sub.TaskID, isEnd: true}
	record, err := d.encode(nil)
	if err == nil {
		err = q.store(ctx, sub.stream(), "end", record)
	}
	if err != nil {
		q.s.opts.Logger.ErrorContext(ctx, "arc: end of subscription not stored", "subscription", sub.ID, "err", err)
	}
}

// serve makes an attempt for the first item of a queue.
func (q *webhookQueue) serve(ctx context.Context, item outbox.Item) outbox.Verdict {
	d, err := decodeDelivery(item.Data)
	if err != nil {
		return outbox.Dead("record not readable", err)
	}
	waited := max(time.Since(item.First), 0)
	age := d.age + waited
	isLate := strings.HasPrefix(item.Stream, lateKind+"/")
	sub, err := q.subscription(ctx, d)
	switch {
	case err != nil:
		return outbox.Later(storeDelay, err)
	case d.isEnd:
		return q.end(ctx, item, sub, isLate)
	case sub != nil && sub.isRemoved:
		_ = q.count(d, -len(item.Data)) // always succeeds
		return outbox.Done()
	case sub == nil:
		return q.dead(ctx, item, d, reasonExpired, nil)
	case sub.isGone:
		return q.dead(ctx, item, d, reasonEnded, errStatus(http.StatusGone))
	case age >= maxWebhookAge:
		return q.dead(ctx, item, d, reasonAge, nil)
	case isLate && item.Attempt == 1 && waited < d.wait:
		return outbox.Later(d.wait-waited, nil)
	}
	d.dialect = sub.dialect
	record, err := q.send.hosts.Breaker(hostOf(d.URL))
	if err != nil {
		return outbox.Later(retry.After(err), err)
	}
	err = guard.Call("webhook attempt", func() error { return q.send.attempt(ctx, d) })
	switch {
	case ctx.Err() != nil:
		record(context.Canceled)
		return outbox.Later(0, ctx.Err())
	case errors.Is(err, errNoDialect):
		record(context.Canceled)
		return outbox.Later(storeDelay, err)
	case err != nil && retryable(err):
		record(retry.Mark(err, retry.Unknown, 0))
		return q.repeat(ctx, item, d, age, err)
	}
	record(nil)
	switch {
	case err == nil:
		_ = q.count(d, -len(item.Data)) // always succeeds
		return outbox.Done()
	case errors.Is(err, errStatus(http.StatusGone)) && sub.static:
		q.giveUp(ctx, d, d.attempts+item.Attempt, err)
		return outbox.Gone(err)
	case errors.Is(err, errStatus(http.StatusGone)):
		if failed := q.deactivate(ctx, sub, func(stored *subscription) { stored.isGone = true }); failed != nil {
			return outbox.Later(storeDelay, failed)
		}
	}
	return q.dead(ctx, item, d, "refused", err)
}

// hostOf returns the host of a URL, which is the key of its circuit breaker.
func hostOf(rawURL string) string {
	u, err := url.Parse(rawURL)
	if err != nil {
		return ""
	}
	return strings.ToLower(u.Host)
}

// subscription returns the subscription of a notification, or nil if it has expired.
func (q *webhookQueue) subscription(ctx context.Context, d *delivery) (*subscription, error) {
	if d.isStatic {
		return &subscription{static: true}, nil
	}
	entry, err := q.db.Get(ctx, subKey(d.taskID, d.SubscriptionID))
	if errors.Is(err, store.ErrNotFound) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	return decodeSubscription(entry.Value)
}

// repeat returns the time of the next attempt after a failure, by the schedule of ARC-D44.
func (q *webhookQueue) repeat(ctx context.Context, item outbox.Item, d *delivery, age time.Duration, err error) outbox.Verdict {
	q.s.opts.Logger.DebugContext(ctx, "arc: webhook attempt failed", "subscription", d.SubscriptionID,
		"delivery", d.ID, "attempt", d.attempts+item.Attempt, "err", err)
	p := q.send.retry
	delay := p.Base << min(item.Attempt-1, 20)
	if p.Max > 0 {
		delay = min(delay, p.Max)
	}
	switch isLate := strings.HasPrefix(item.Stream, lateKind+"/"); {
	case isLate && item.Attempt < len(lateDelays):
		delay = lateDelays[item.Attempt]
	case isLate:
		return q.dead(ctx, item, d, "attempts used up", err)
	case item.Attempt >= p.MaxAttempts || q.hasLate(ctx, item.Stream):
		return q.move(ctx, item, d, age, err)
	}
	return outbox.Retry(max(min(q.send.delay(delay, err), maxWebhookAge-age), time.Nanosecond), err)
}

// hasLate reports whether the second queue of a subscription has items.
func (q *webhookQueue) hasLate(ctx context.Context, stream string) bool {
	items, _, err := q.box.Waiting(ctx, lateStream(stream))
	return err == nil && items > 0
}

// move puts an item into the second queue.
func (q *webhookQueue) move(ctx context.Context, item outbox.Item, d *delivery, age time.Duration, err error) outbox.Verdict {
	if q.send.retry.MaxAttempts < 0 {
		return q.dead(ctx, item, d, "attempts used up", err)
	}
	wait := q.send.delay(lateDelays[0], err)
	record := fmt.Appendf(nil, `{"attempts":%d,"age":%d,"wait":%d,`, item.Attempt, age.Milliseconds(), wait.Milliseconds())
	failed := q.box.Put(ctx, lateStream(item.Stream), item.ID, append(record, item.Data[1:]...))
	if _, isFull := errors.AsType[*budget.Error](failed); isFull {
		return q.dead(ctx, item, d, "queue full", err)
	}
	if failed != nil {
		return outbox.Retry(storeDelay, errors.Join(err, failed))
	}
	return outbox.Done()
}

// end ends a subscription, behind its last notification.
func (q *webhookQueue) end(ctx context.Context, item outbox.Item, sub *subscription, isLate bool) outbox.Verdict {
	var err error
	switch {
	case sub == nil:
	case !isLate && q.hasLate(ctx, item.Stream):
		err = q.box.Put(ctx, lateStream(item.Stream), item.ID, item.Data)
	case sub.Active:
		err = q.deactivate(ctx, sub, func(*subscription) {})
	}
	if err != nil {
		return outbox.Later(storeDelay, err)
	}
	return outbox.Done()
}

// dead gives up an item.
func (q *webhookQueue) dead(ctx context.Context, item outbox.Item, d *delivery, reason string, err error) outbox.Verdict {
	_ = q.count(d, -len(item.Data)) // always succeeds
	d.letterID = letterID(item.Stream, item.Seq)
	q.giveUp(ctx, d, d.madeAttempts(item.Attempt, reason), cmp.Or(err, errors.New("arc: webhook: "+reason)))
	return outbox.Dead(reason, err)
}

// madeAttempts returns the number of attempts of a dead letter. The queue counts its last call of
// serve, which made an attempt only for some reasons.
func (d *delivery) madeAttempts(n int, reason string) int {
	switch reason {
	case reasonExpired, reasonEnded, reasonAge:
		n--
	}
	return d.attempts + n
}

// giveUp reports an abandoned notification.
func (q *webhookQueue) giveUp(ctx context.Context, d *delivery, attempts int, err error) {
	q.s.opts.Logger.WarnContext(ctx, "arc: webhook notification abandoned", "subscription", d.SubscriptionID,
		"delivery", d.ID, "event", string(d.Event), "attempts", attempts, "err", err)
	hook := q.send.opts.OnDeadLetter
	if hook == nil {
		return
	}
	letter := d.letter(attempts, err)
	q.s.hook(ctx, "dead letter hook", func(ctx context.Context) { hook(ctx, letter) })
}

// deactivate ends a subscription permanently, and changes its record.
func (q *webhookQueue) deactivate(ctx context.Context, sub *subscription, change func(stored *subscription)) error {
	key := subKey(sub.TaskID, sub.ID)
	err := q.change(ctx, sub, func(stored *subscription) {
		stored.Active = false
		change(stored)
	})
	switch {
	case errors.Is(err, store.ErrNotFound):
		q.s.ledger.remove(subscriptionObject, key)
		return nil
	case err != nil:
		return err
	}
	q.s.ledger.empty(subscriptionObject, key)
	q.s.ledger.end(subscriptionObject, key, q.retention())
	q.s.tasks.forget(sub)
	return nil
}

// change changes the record of a subscription.
func (q *webhookQueue) change(ctx context.Context, sub *subscription, change func(stored *subscription)) error {
	key := subKey(sub.TaskID, sub.ID)
	err := store.ErrConflict
	for errors.Is(err, store.ErrConflict) {
		var entry store.Entry
		entry, err = q.db.Get(ctx, key)
		var stored *subscription
		if err == nil {
			stored, err = decodeSubscription(entry.Value)
		}
		var b []byte
		if err == nil {
			change(stored)
			b, err = stored.encode()
		}
		if err == nil {
			_, err = q.db.Update(ctx, key, b, entry.Revision, q.retention())
		}
	}
	return err
}
