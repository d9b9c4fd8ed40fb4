// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package air

import (
	"fmt"
	"slices"
	"sync/atomic"
)

// A self is the agent of an inbox. Rotate replaces its identity.
type self struct {
	did  string
	id   atomic.Pointer[Identity]
	next atomic.Pointer[Identity] // of the last Rotate; nil before
}

// open opens a body with the current key, a retired key, or the new key that Rotate publishes. Senders may have the new
// key before the agent uses it.
func (s *self) open(env *Envelope) (plain []byte, retired bool, err error) {
	plain, retired, err = s.id.Load().open(env.binding(), env.BodyJSON())
	if next := s.next.Load(); err != nil && next != nil {
		return next.open(env.binding(), env.BodyJSON())
	}
	return plain, retired, err
}

// An opener reads envelopes and opens sealed bodies.
type opener struct {
	self *self
	opts *InboxOptions
}

var anyBodyTypes = []string{AnyBodyType}

// decode decodes an envelope. The type of the body of a pulled one is checked later (AIR-D73).
func (o *opener) decode(data []byte, anyBody bool) (*Envelope, error) {
	opts := DecodeOptions{Profile: o.opts.Profile, BodyTypes: o.opts.BodyTypes, MaxMessage: o.opts.Limits.MaxMessage}
	if anyBody {
		opts.BodyTypes = anyBodyTypes
	}
	return DecodeEnvelope(data, &opts)
}

// open fills in the body of a delivery, decrypted if it is sealed.
func (o *opener) open(a *arrival) error {
	d, env := a.d, a.env
	if env.Type != bodyTypeEncrypted {
		d.BodyJSON = env.BodyJSON()
		d.Body = env.bodyOf(d.BodyJSON)
		return nil
	}
	plain, retired, err := o.self.open(env)
	if err != nil {
		return holdable(err)
	}
	if retired && a.via == viaPush {
		return &Error{Code: ErrStaleKey, Message: "sealed to a retired key", AIRID: o.self.id.Load().airID}
	}
	d.Sealed = true
	d.Body, d.BodyJSON, err = o.parse(env, plain)
	return err
}

// parse validates a decrypted body (AIR-D39).
func (o *opener) parse(env *Envelope, plain []byte) (Body, []byte, error) {
	c := getScratch()
	defer putScratch(c)
	out, ok := c.Append(nil, plain)
	if !ok || c.HasDuplicate || !c.IsObject {
		return nil, nil, holdable(errSealed())
	}
	f, profile := fields{string(out), c.Top}, o.opts.Profile
	bodyType, hasType := f.str("type")
	switch {
	case hasType && isNegotiation(bodyType):
		body, err := c.parseBody(out, profile, true)
		if err != nil {
			return nil, nil, err
		}
		switch bodyType {
		case bodyTypeCounter, bodyTypeAccept, bodyTypeDecline:
			if env.InReplyTo == "" && profile != ProfileDeployed {
				return nil, nil, ErrInvalidEnvelope.err("in_reply_to is missing")
			}
		}
		return body, out, nil
	case bodyType == bodyTypeEncrypted:
		return nil, nil, unsupported(bodyType)
	case slices.Contains(o.opts.BodyTypes, AnyBodyType),
		hasType && (profile == ProfileDeployed || slices.Contains(o.opts.BodyTypes, bodyType)):
		return &Raw{Type: bodyType, JSON: out}, out, nil
	}
	return nil, nil, holdable(unsupported(bodyType))
}

func unsupported(bodyType string) *Error {
	return ErrUnsupportedBody.err(fmt.Sprintf("type %.64q is not in BodyTypes", bodyType))
}
