// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package core

// maxRefusals is the number of refusals of a cursor after which the poller starts without one. A
// failed pull does not change the cursor (AIR-D63), so after the loss of the relay's cursors the
// poller would retry without end.
const maxRefusals = 3

// A Poll is where a poller is in its mailbox (AIR-D63, AIR-D65). A round is a drain that begins at the start or goes back
// for unsettled mail, with the drains that continue behind it.
type Poll struct {
	Cursor   string // of the next pull
	IsBehind bool   // the next drain continues the round
	IsBack   bool   // the round has unsettled mail

	back     string // a cursor at or before the first of that
	refused  string // last cursor that the relay refused
	refusals int    // consecutive ones
}

// Begin returns the poll at the begin of a drain.
func (p Poll) Begin() Poll {
	if !p.IsBehind {
		p.IsBack, p.back = false, ""
	}
	return p
}

// Hold returns the poll after an unsettled envelope of a page. No cursor before it is lost by going back to back.
func (p Poll) Hold(back string) Poll {
	if !p.IsBack {
		p.IsBack, p.back = true, back
	}
	return p
}

// Answer returns the poll after an answer to a pull with a cursor, which the relay may have refused.
func (p Poll) Answer(cursor string, isRefused bool) Poll {
	switch {
	case isRefused && cursor != "" && p.refused == cursor:
		p.refusals++
	case isRefused && cursor != "":
		p.refused, p.refusals = cursor, 1
	case !isRefused && p.refused == cursor:
		p.refusals = 0
	}
	return p
}

// Page returns the poll after a page that was handled and acknowledged. An empty page, or one with the cursor
// of its request, ends the drain, or a relay could keep it in a loop.
func (p Poll) Page(requested, cursor string, isEmpty, hasMore bool) Poll {
	p.Cursor, p.IsBehind = cursor, hasMore && !isEmpty && cursor != requested
	if !p.IsBehind && p.IsBack {
		p.Cursor = p.back
	}
	return p
}

// Fail returns the poll after the failure of a pull with a cursor, or of its page: p is the poll before the page. A cursor
// that was refused too often is dropped.
func (p Poll) Fail(cursor string) (_ Poll, isDropped bool) {
	p.Cursor, p.IsBehind = cursor, false
	if p.IsBack {
		p.Cursor = p.back
	}
	if p.refusals < maxRefusals {
		return p, false
	}
	p.Cursor, p.refusals = "", 0
	return p, true
}
