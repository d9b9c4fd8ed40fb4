// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package altar

import (
	"bytes"
	"errors"
	"time"

	"github.com/fivewire/fivewire/altar/internal/core"
	"github.com/fivewire/fivewire/altar/internal/ledger"
	"github.com/fivewire/fivewire/internal/once"
)

// ledgerOf returns the ledger of a call. A call of another Host is recorded there.
func (h *Host) ledgerOf(c *hostCall) ledger.Ledger {
	if c.Session().IsLink {
		return ledger.Memory{}
	}
	return h.ledger
}

// claimCall looks for the record of a call in the ledger, and records the intent to run the call unless it is refused.
func (h *Host) claimCall(sh *shard, now time.Time, c *hostCall, refusal any) {
	l := h.ledgerOf(c)
	if l.IsShared() {
		c.claim = h.newClaim(sh, c, refusal != nil)
	}
	if v, isDecided := l.Claim(c.claim); isDecided {
		h.claimed(sh, now, c, c.claim, v)
	}
}

// A claimedCall is a call with its record in a shared ledger.
type claimedCall struct {
	ledger.Claim
	sh *shard
	c  *hostCall
}

// newClaim returns a call in the form of a shared ledger.
func (h *Host) newClaim(sh *shard, c *hostCall, isRefused bool) *ledger.Claim {
	cl := &claimedCall{sh: sh, c: c, Claim: ledger.Claim{
		Session: c.sessionID, ID: c.ID(), IsRefused: isRefused, IsTaken: c.IsTaken(), Digest: c.Print, Behind: sh.lastBegin,
		MayRepeat: c.contract.Idempotent && !c.contract.Streaming && c.Pin == "",
		IsQuery:   isRefused || !sh.core.CanRun(&c.Call),
	}}
	cl.Call, sh.lastBegin = cl, &cl.Claim
	return &cl.Claim
}

// Decided implements [ledger.Call].
func (cl *claimedCall) Decided(v ledger.Verdict) {
	h := cl.c.h
	now := h.lock(cl.sh)
	defer h.unlock(cl.sh)
	h.claimed(cl.sh, now, cl.c, &cl.Claim, v)
}

// Recorded implements [ledger.Call].
func (cl *claimedCall) Recorded(v ledger.Verdict) {
	h := cl.c.h
	now := h.lock(cl.sh)
	defer h.unlock(cl.sh)
	if cl.c.claim == &cl.Claim {
		h.recorded(cl.sh, now, cl.c, v)
	}
}

// Lost implements [ledger.Call].
func (cl *claimedCall) Lost() []byte {
	return cl.c.h.encodeOutcome(&ToolResult{InvocationID: cl.ID, Error: errDisconnected()}, nil)
}

// Cut implements [ledger.Call]: the outcome is the same as after a crash.
func (cl *claimedCall) Cut() ledger.Outcome {
	cl.sh.mu.Lock()
	defer cl.sh.mu.Unlock()
	isDispatched := !cl.c.Start().IsZero()
	if cl.MayRepeat || !isDispatched {
		return ledger.Outcome{Retry: isDispatched}
	}
	return ledger.Outcome{Encode: cl.Lost}
}

// claimed continues a call whose record was looked for.
func (h *Host) claimed(sh *shard, now time.Time, c *hostCall, cl *ledger.Claim, v ledger.Verdict) {
	if c.claim != cl {
		return
	}
	e := core.Event{Kind: core.CallClaimed, Call: &c.Call, Claim: v.Result, Runtimes: h.runtimesOf(v.Failed)}
	switch v.Result {
	case core.ClaimReplayed, core.ClaimFailed:
		e.Claim, e.Data = h.verdict(c, v)
		fallthrough
	case core.ClaimAbsent:
		c.claim = nil
	}
	h.step(sh, now, &e)
}

// verdict returns a verdict about an earlier run as the core knows it.
func (h *Host) verdict(c *hostCall, v ledger.Verdict) (core.ClaimResult, any) {
	switch {
	case errors.Is(v.Err, once.ErrReused):
		return core.ClaimFailed, hostMessages{}.Fault(core.CauseReused, nil)
	case errors.Is(v.Err, once.ErrBusy):
		return core.ClaimFailed, errOverloaded("MaxConcurrent")
	case errors.Is(v.Err, once.ErrNotRetained):
		return core.ClaimReplayed, &core.Replay{Result: hostMessages{}.Result(&c.Call, errNotRetained())}
	case errors.Is(v.Err, once.ErrLost):
		return core.ClaimReplayed, &core.Replay{Result: hostMessages{}.Result(&c.Call, errDisconnected())}
	case v.Err == nil:
		out, err := decodeOutcome(v.Data)
		if err == nil {
			return core.ClaimReplayed, out
		}
		h.logError("call not claimed", err)
	}
	return core.ClaimFailed, errStore()
}

func errStore() *Error {
	return Errorf(ErrInternal, "", "the Host cannot record the call")
}

// recordCall passes the outcome of a call to the ledger.
func (h *Host) recordCall(sh *shard, now time.Time, c *hostCall) {
	if h.isClosed.Load() { // everything ends
		h.step(sh, now, &core.Event{Kind: core.CallRecorded, Call: &c.Call})
		return
	}
	var o ledger.Outcome
	if c.claim != nil {
		o = h.outcome(c)
		c.claim.After, sh.lastRecord = sh.lastRecord, c.claim
	}
	if v, isRecorded := h.ledgerOf(c).Record(c.claim, o); isRecorded {
		h.recorded(sh, now, c, v)
	}
}

// outcome returns the outcome of a call that ends.
func (h *Host) outcome(c *hostCall) ledger.Outcome {
	result, last, isKept := c.Ending()
	if !isKept {
		return ledger.Outcome{Forget: true}
	}
	var chunks []*StreamChunk
	if last != nil {
		c.Stream.Chunks(func(id int64, payload []byte) {
			chunks = append(chunks, &StreamChunk{InvocationID: c.ID(), ChunkID: id, Payload: payload})
		})
		chunks = append(chunks, last.Data.(*StreamChunk))
	}
	m, _ := result.(*ToolResult)
	return ledger.Outcome{Encode: func() []byte { return h.encodeOutcome(m, chunks) }}
}

// abandonCall ends the claim of a call whose session has ended. That is the outcome of a dispatched call: a Host that
// has not noticed the end must not run it again.
func (h *Host) abandonCall(c *hostCall) {
	cl := c.claim
	c.claim = nil
	if cl == nil {
		return
	}
	o := ledger.Outcome{}
	if isDispatched := !c.Start().IsZero(); cl.MayRepeat {
		o.Retry = isDispatched
	} else if isDispatched {
		failure := &ToolResult{InvocationID: c.ID(), Error: errUnknownSession()}
		o.Encode = func() []byte { return h.encodeOutcome(failure, nil) }
	}
	h.ledger.Record(cl, o)
}

// recorded announces the end of a call that was claimed here.
func (h *Host) recorded(sh *shard, now time.Time, c *hostCall, v ledger.Verdict) {
	e := core.Event{Kind: core.CallRecorded, Call: &c.Call, Claim: v.Result}
	switch v.Result {
	case core.ClaimReplayed:
		e.Claim, e.Data = h.verdict(c, v)
		if e.Claim == core.ClaimFailed { // its own outcome is as good
			e.Claim, e.Data = core.ClaimGranted, nil
		}
	case core.ClaimFailed:
		e.Data = errStore()
	}
	c.claim = nil
	h.step(sh, now, &e)
}

var errBadOutcome = errors.New("altar: store: malformed outcome")

const outcomeWeight = 128 // of the names of the members and the id of a recorded result, about

// encodeOutcome returns the record of an outcome: messages in wire form, one a line.
func (h *Host) encodeOutcome(result *ToolResult, chunks []*StreamChunk) (out []byte) {
	var err error
	if result != nil {
		if result.header != (header{}) {
			own := *result
			own.header = header{}
			result = &own
		}
		out, err = appendMessage(make([]byte, 0, weight(result)+outcomeWeight), result, true)
	}
	for i, c := range chunks {
		if i > 0 {
			out = append(out, '\n')
		}
		if err == nil {
			out, err = appendMessage(out, c, true)
		}
	}
	if err != nil { // no peer gets it; that the call ran stays known
		h.logError("outcome not encoded", err)
		out, _ = appendMessage(nil, &ToolResult{InvocationID: "x", Error: errNotRetained()}, true)
	}
	return out
}

func decodeOutcome(data []byte) (*core.Replay, error) {
	out := &core.Replay{}
	var line []byte
	for len(data) > 0 {
		line, data, _ = bytes.Cut(data, []byte{'\n'})
		m, err := DecodeMessage(line, len(line))
		if err != nil {
			return nil, errors.Join(errBadOutcome, err)
		}
		switch m := m.(type) {
		case *ToolResult:
			out.Result = m
		case *StreamChunk:
			out.Chunks = append(out.Chunks, chunkOf(m))
		}
	}
	if n := len(out.Chunks); out.Result == nil && (n == 0 || !out.Chunks[n-1].Final) {
		return nil, errBadOutcome
	}
	return out, nil
}

// chunkOf returns a chunk as the core sees it.
func chunkOf(m *StreamChunk) core.Chunk {
	c := core.Chunk{ID: m.ChunkID, Size: weight(m) - itemWeight, Final: m.IsFinal, Payload: m.Payload, Data: m}
	if m.Error != nil {
		c.Err, c.Result = m.Error, resultOf(m.Error)
	}
	return c
}

// resultOf returns how a call has ended with an answer of its Runtime, as the core counts it.
func resultOf(err *Error) core.CallResult {
	switch {
	case err == nil:
		return core.Succeeded
	case err.Code == ErrRuntimeUnavailable:
		return core.Unavailable
	}
	return core.Erred
}
