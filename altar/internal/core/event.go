// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package core

import "time"

// Limits are the options of a Host that its shards apply. All durations are positive.
type Limits struct {
	RuntimeGrace time.Duration // wait for an absent Runtime
	ClientGrace  time.Duration // of a call without a connection
	SlowReader   time.Duration // of a connection that takes no chunk
	StreamBuffer int           // bytes of a stream beyond the credit of its Runtime
}

// An Env is what the shards of a Host share. The owners behind its interfaces are safe for concurrent use, and
// their methods are quick.
type Env struct {
	Limits    Limits
	IDs       IDs
	Outcomes  Outcomes
	Messages  Messages
	Registry  *Registry // the first one of all shards
	HasAudit  bool
	HasRouter bool // it chooses between the Runtimes of this Host
}

// IDs are the invocation ids of the calls in flight in all shards.
type IDs interface {
	// Use enters a call. If a call of another session has the id, Use returns that one and changes nothing.
	Use(id string, c *Call) (other *Call)
	// Free removes a call.
	Free(id string, c *Call)
}

// Outcomes are the records of the ended calls of all shards, see [Records].
type Outcomes interface {
	// Find copies the record of an id.
	Find(sc *RecordScope, id string, r *Record) bool
	// OwedTo returns the records of the session whose ended call has an id that its Runtime may still answer.
	OwedTo(id string) *RecordScope
	Add(id string, r *Record, size int, isForRepeats bool, rt *Runtime)
	// Close notes that no final message for an ended call of a Runtime will come.
	Close(id string, rt *Runtime)
	EndScope(sc *RecordScope)
}

// Messages make the messages that a Host sends by itself. They are opaque.
type Messages interface {
	// Fault returns the error for a cause.
	Fault(cause Cause, c *Call) any
	// Result returns a result with an error.
	Result(c *Call, err any) any
	// Last returns a final chunk with an error.
	Last(c *Call, id int64, err any) any
	// Size returns the bytes of a result or a chunk.
	Size(message any) int
	// Chunk returns a chunk that is not final with an id and a payload.
	Chunk(c *Call, id int64, payload []byte) any
	// Keep appends a small result in a form for Kept. It reports false for another one.
	Keep(dst []byte, result any) ([]byte, bool)
	// Kept returns a result that Keep wrote, for another call with the id.
	Kept(c *Call, kept string) any
	// KeepStream appends a stream that has ended in a form for KeptStream.
	KeepStream(dst []byte, s *Stream) []byte
	// KeptStream returns the chunks of a stream that KeepStream wrote, for another call with the id.
	KeptStream(c *Call, kept string) []Chunk
}

// A Gate admits calls to one Runtime, for all shards. See [Load].
type Gate interface {
	// Check reports whether a call with so many bytes finds space, and whether calls should avoid the Runtime.
	Check(bytes int, now time.Time) (hasSpace, isAvoided bool)
	// Admit takes a place for a call. The call is the trial of an avoided Runtime, or not.
	Admit(bytes int, isPinned bool, now time.Time) (isTrial, ok bool)
	// Release gives the place back.
	Release(o Outcome, isTrial bool, now time.Time)
	// Running returns the number of places taken.
	Running() int
}

// A Queue has the messages that wait for a connection.
type Queue interface {
	// Take takes space for a chunk. Without space, the shard gets SpaceFreed later.
	Take(shard int, bytes int) bool
}

// An Account charges a call to its session. Errors are for the peer, nil without one.
type Account interface {
	Reserve(bytes int64) (err any)
	Resize(bytes int64) (err any)
	// Room returns the free bytes, and whether they are less than a quarter of a bound.
	Room() (free int64, isLow bool)
	Release()
}

// A Collector makes one result of the chunks of a stream (ALT-D29).
type Collector interface {
	// Add takes a chunk, and returns its bytes and whether the result still fits one message.
	Add(chunk any) (bytes int, fits bool)
	// Result returns the result.
	Result() any
}

// Shards is the number of shards of a Host.
const Shards = 16

// A Conn is the connection of a client, as all shards see it.
type Conn struct {
	Queue Queue
	Data  any // opaque

	seats [Shards]*seat // each is guarded like its shard
}

// A seat has the readers of one connection in one shard, in the order of their attachment.
type seat struct{ readers chain[Reader] }

// A Cause is why a Host ends or refuses a call.
type Cause int

// The causes.
const (
	CauseNone Cause = iota
	CauseUnknownSession
	CauseSessionDestroyed
	CauseSessionExpired
	CauseReused         // the id is that of another call
	CauseInUse          // in another session
	CauseUnknownCall    // to resume
	CauseNotRetained    // payload or chunks
	CauseNotFulfilled   // no Runtime was ever there
	CauseRuntimeDown    // it did not return
	CauseOverloaded     // all Runtimes
	CauseDisconnected   // its Runtime
	CauseDeadline       // ALT-D25
	CauseCancelled      // by the client
	CauseClientGone     // ALT-D33
	CauseGap            // in the chunks
	CauseUnexpected     // a chunk of a contract that does not stream
	CauseResultInStream // after a chunk
	CauseInvalid        // answer
	CauseSlow           // reader
	CauseTooLarge       // collected result
)

// result returns how a call with a cause has ended for its Runtime.
func (c Cause) result() CallResult {
	switch c {
	case CauseGap, CauseUnexpected, CauseResultInStream, CauseInvalid:
		return BadAnswer
	case CauseDeadline:
		return TimedOut
	case CauseDisconnected:
		return Unavailable
	}
	return Erred
}

// An EventKind is the kind of an Event.
type EventKind int

// The events, with the fields of [Event] that they have.
const (
	SessionOpened    EventKind = iota // Session, Runtimes to ask
	SessionProlonged                  // Session, At
	SessionEnded                      // Session, Text: how
	CallReceived                      // Session, Call, Reader, Conn, ID, N: first chunk, Credit; Data: a refusal
	CallClaimed                       // Call, Claim, Runtimes of the Host that has failed; Data: an outcome or an error
	CallRecorded                      // Call, Claim; Data: another outcome
	CallJudged                        // Call: one that a Fulfilled or RuntimeLost of all shards concerns
	RuntimeChosen                     // Call, Runtime
	ResultReceived                    // Call, Runtime, Data, Size, Result
	ChunkReceived                     // Call, Runtime, Chunk
	AnswerBroken                      // Call, Runtime
	AnswerClosed                      // Call, Runtime: no final message will come
	CallRefused                       // Call, Runtime, Data: it does not run the call
	CallLost                          // Call, Runtime: as if it had disconnected
	CreditReceived                    // Conn, Session, ID, N
	CallCancelled                     // Session, ID, Text: reason for the Runtime
	ConnClosed                        // Conn
	SpaceFreed                        // Conn
	FulfillmentAsked                  // Runtime, Session: nil: all
	Fulfilled                         // Runtime, Session: nil: all; Change
	RuntimeLost                       // Runtime
	TimerFired                        // the first timer
)

// An Event is one message, one timer or one decision elsewhere. It concerns one shard, unless it has no session,
// call or connection.
type Event struct {
	Kind     EventKind
	Session  *Session
	Call     *Call
	Reader   *Reader
	Conn     *Conn
	Runtime  *Runtime
	Runtimes []*Runtime
	Chunk    Chunk
	Change   func(r *Registry) *Registry
	ID, Text string
	N        int64
	Credit   int64
	Size     int
	Result   CallResult
	Claim    ClaimResult
	At       time.Time
	Data     any
	Err      any // of a result
}

// A ClaimResult is the answer of the ledger to a claim.
type ClaimResult int

// The results.
const (
	ClaimGranted   ClaimResult = iota // the call may run, or its outcome is recorded
	ClaimContinued                    // the call may run; it was cut off elsewhere
	ClaimAbsent                       // it was not recorded before, and is not now
	ClaimReplayed                     // it has an outcome
	ClaimFailed                       // with an error
)

// An EffectKind is the kind of an Effect.
type EffectKind int

// The effects, with the fields of [Effect] that they have.
const (
	GiveMessage    EffectKind = iota // Reader, Data; Session: of the last message; IsTaken: its space was taken
	RefuseCall                       // Reader, Session, Text: id, Data: error; IsNew: not audited; IsAtOnce: it never waited
	SendCall                         // Runtime, Call
	SendCancel                       // Runtime, Call, Text: reason
	SendCredit                       // Runtime, Call, N
	AskRuntime                       // Runtime, Session
	AnnounceEnd                      // Session, Text: how
	ProlongSession                   // Session: its expiry has moved
	ExpireSession                    // Session: unless another Host has prolonged it
	ClaimCall                        // Call, Data: a refusal
	RecordCall                       // Call
	AbandonCall                      // Call: its session has ended, so it needs no record
	ChooseRuntime                    // Call, Runtimes
	JudgeCall                        // Call: CallJudged follows, in the order of all shards
	AuditCall                        // Call, Text, Data: error
	AuditReplay                      // Session, Record, Reader, Text: an id
	AuditSession                     // Session, Text, Data: error
	FinishCall                       // Call, N: received chunks, Data: error
	DropMessage                      // Text: why
)

// An Effect is what a shell does after a step, in order.
type Effect struct {
	Kind     EffectKind
	IsTaken  bool
	IsNew    bool
	IsAtOnce bool
	Session  *Session
	Call     *Call
	Reader   *Reader
	Runtime  *Runtime
	Runtimes []*Runtime
	Record   *Record
	Text     string
	N        int64
	Data     any
}
