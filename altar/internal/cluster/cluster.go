// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

// Package cluster describes how Hosts reach the Runtimes of each other. M is the type of a message.
package cluster

import (
	"context"
	"encoding/json"
	"errors"
	"iter"
	"time"

	"github.com/fivewire/fivewire/altar/internal/core"
)

// A Cluster forwards calls to Runtimes connected to other Hosts, so that a client of one Host can
// call the tools of all Hosts. A Host uses it only if no local Runtime can accept a call at
// once. Forwarded calls are validated and authorized by the first Host: the connected Hosts trust
// each other, and each has a unique ID. A call goes only to Hosts with the same contract.
type Cluster[M any] interface {
	// Offers yields the Runtimes of all other Hosts, always in the same order, at once and after every
	// change, until ctx ends. The Host ranges over it once, or again if the sequence ends early.
	Offers(ctx context.Context) iter.Seq[[]Offer]

	// Forward runs a call at the Host of an offer, and yields the messages of its Serve: a
	// ToolResult, or StreamChunks that end with the final chunk. An error comes once and last. An
	// error of the protocol means that the other Host refused the call and that it did not run. After
	// any other error, or an end without a final message, the outcome is unknown.
	//
	// The end of ctx cancels the call at the other Host; [CancelReason] returns the reason. A
	// Cluster that loses its connection may repeat the request with Join set.
	Forward(ctx context.Context, to Offer, call *Call) iter.Seq2[M, error]

	// SessionEnded notifies the other Hosts of the end of a session with forwarded calls. The
	// reason is "destroyed" or "expired". It must not block. If the notification is lost, the
	// session ends at the other Hosts when its lifetime expires.
	SessionEnded(sessionID, reason string)
}

// A Host is what a Cluster calls of the other Host.
type Host[M any] interface {
	// Offers yields the fulfilments of the connected Runtimes, at once and after every change, until
	// ctx ends or the Host is closed. It requires HostOptions.Cluster: only then does the Host request
	// fulfilments from each connected Runtime, in an internal session.
	Offers(ctx context.Context) iter.Seq[[]Offer]

	// Serve runs a call that another Host forwards, and yields the messages of the Runtime: a
	// ToolResult, or StreamChunks that end with the final chunk. An error of the protocol means that the
	// call was refused and did not run. Repeating the same call joins the running call, or yields its
	// recorded outcome.
	//
	// If ctx ends with a [CancelledError], the call is cancelled. If ctx ends otherwise or the loop is
	// left, the call continues for Timing.ClientGracePeriod, so that the other Host can join it.
	Serve(ctx context.Context, call *Call) iter.Seq2[M, error]

	// EndSession ends the part of a session of another Host in this one. The reason is "destroyed"
	// or "expired".
	EndSession(sessionID, reason string)
}

// An Offer is a Runtime and the contracts that it fulfils.
type Offer = core.Offer

// A Call is a call that one Host forwards to another.
type Call struct {
	HostID        string // that forwards it
	RuntimeID     string // that is to run it
	Contract      string
	ToolName      string // as the client wrote it
	InvocationID  string
	SessionID     string
	SessionTTL    time.Duration // what is left of the session
	Principal     string        // owner of the session, and its tenant
	Tenant        string
	Parameters    json.RawMessage // in normal form
	Metadata      map[string]string
	CorrelationID string
	Timeout       time.Duration // what is left of the allotted time; zero: that of the contract
	Attempt       int           // 0, or 1 after a failover (ALT-D24)

	// Join asks for a call that was forwarded before, from chunk ResumeFrom
	// on. It never starts one.
	Join       bool
	ResumeFrom int64
}

// A CancelledError is the cause with which the context of a forwarded call ends. Its reason is
// one of those of CancelCall (ALT-D32).
type CancelledError struct{ Reason string }

// Error includes the reason.
func (e *CancelledError) Error() string { return "altar: call cancelled: " + e.Reason }

// CancelReason returns why a forwarded call was cancelled, or nothing if ctx has not ended or ended
// for another reason than [CancelledError].
func CancelReason(ctx context.Context) string {
	var e *CancelledError
	if errors.As(context.Cause(ctx), &e) {
		return e.Reason
	}
	return ""
}
