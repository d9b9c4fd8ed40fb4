// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package relay

import (
	"context"
	"crypto/ed25519"
	"errors"
	"net/http"
	"net/url"
	"strings"

	"github.com/fivewire/fivewire/air"
	"github.com/fivewire/fivewire/air/internal/name"
	"github.com/fivewire/fivewire/internal/guard"
)

// A route is a parsed request path.
type route struct {
	op        func(*Server, http.ResponseWriter, *http.Request, *call) error
	method    string
	name      string // of the operation, for the audit
	recipient string
	canStream bool
	pulls     bool // requires the secret of the inbox, not that of senders
}

func parseRoute(path string) (route, bool) {
	path, isAbsolute := strings.CutPrefix(path, "/")
	if !isAbsolute {
		return route{}, false
	}
	if path == "health" {
		return route{method: http.MethodGet}, true
	}
	first, rest, _ := strings.Cut(path, "/")
	name, verb, isLong := strings.Cut(rest, "/")
	if isLong {
		first += "/" + verb
	}
	var rt route
	switch first {
	case "inbox":
		rt = route{op: (*Server).servePush, name: "push", method: http.MethodPost}
	case "inbox/pull":
		rt = route{op: (*Server).servePull, name: "pull", method: http.MethodGet, pulls: true}
	case "inbox/ack", "ack":
		rt = route{op: (*Server).serveAck, name: "ack", method: http.MethodPost, pulls: true}
	case "pull":
		rt = route{op: (*Server).serveDeployedPull, name: "pull", canStream: true, method: http.MethodGet, pulls: true}
	default:
		return rt, false
	}
	var err error
	rt.recipient, err = url.PathUnescape(name)
	return rt, err == nil && rt.recipient != ""
}

// A recipient is the mailbox of a request.
type recipient struct {
	airID string
	did   string // "" if only the AIR ID is known
	name  string // as in the request
}

// parseRecipient parses an AIR ID or a DID.
func parseRecipient(text string) (*recipient, bool) {
	to := &recipient{name: text}
	if name.IsAIRID(text) {
		to.airID = text
		return to, true
	}
	d, ok := name.ParseDID(text)
	if !ok {
		return to, false
	}
	to.airID, to.did = d.AIRID, text
	return to, true
}

// A call is an authorized request.
type call struct {
	route
	to        *recipient
	body      []byte // if it was read for a signature
	addr      string // of the caller, as a principal
	principal string // in the budget

	isAnswered bool // the response has begun

	signer string // of a signed request, which verify checks with a key
	verify func(key ed25519.PublicKey) error
}

// isAuthenticated reports whether the request had a secret.
func (x *call) isAuthenticated() bool { return x.principal != x.addr }

func errNoMailbox() *air.Error { return air.Errorf(air.ErrNotFound, "no such mailbox") }

// lookUp completes a recipient from the directory.
func (s *Server) lookUp(ctx context.Context, to *recipient) error {
	if s.opts.Directory == nil {
		if to.did != "" && !s.isLocal(to.did) {
			return errNoMailbox()
		}
		return nil
	}
	var did string
	err := guard.Call("directory", func() (err error) {
		did, err = s.opts.Directory.LookupDID(ctx, to.airID)
		return err
	})
	switch {
	case errors.Is(err, air.ErrNotFound), err == nil && to.did != "" && to.did != did:
		return errNoMailbox()
	case err != nil:
		return because(air.ErrBadGateway, "the directory is out of reach", err)
	}
	to.did = did
	return nil
}

// isLocal reports whether a relay without a directory has a mailbox for a DID.
func (s *Server) isLocal(did string) bool {
	d, ok := name.ParseDID(did)
	return ok && d.Host == s.opts.RecipientHost
}
