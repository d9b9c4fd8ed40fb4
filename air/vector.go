// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package air

import (
	"bytes"
	"crypto/ed25519"
	"net/http"
	"net/url"
	"time"

	"github.com/fivewire/fivewire/air/internal/core"
	"github.com/fivewire/fivewire/air/internal/hook"
	"github.com/fivewire/fivewire/air/internal/signature"
	"github.com/fivewire/fivewire/internal/vector"
)

func init() {
	hook.Vector, hook.DecodeHeader = vectors.Run, decodeHeader
	hook.Jitter = func(opts any, random func() float64) {
		switch o := opts.(type) {
		case *ResolverOptions:
			o.random = random
		case *PollerOptions:
			o.random = random
		}
	}
	hook.IgnoreThreads = func(opts any) { opts.(*InboxOptions).ignoresThreads = true }
	hook.Apply = func(thread any, isOwn bool, id, inReplyTo string, body any) error {
		th := thread.(*Thread)
		next, err := applyOnce(th.state, isOwn, id, inReplyTo, body.(Body))
		*th = threadOf(next)
		return err
	}
}

// vectors are the operations of the test vectors on parts that are not exported.
var vectors = vector.Ops{
	"signing_input": vector.New(vectorSigningInput),
	"seal":          vector.New(vectorSeal),
	"open":          vector.New(vectorOpen),
	"x25519":        vector.New(vectorX25519),
	"air_id":        vector.New(vectorAIRID),
	"did":           vector.New(vectorDID),
	"document_url":  vector.New(vectorDocumentURL),
	"key_encode":    vector.New(vectorKeyEncode),
	"key_decode":    vector.New(vectorKeyDecode),
	"derive":        vector.New(vectorDerive),
	"error_decode":  vector.New(vectorErrorDecode),

	"thread_apply": vector.New(vectorThreadApply),

	"request_sign":   vector.New(vectorRequestSign),
	"request_verify": vector.New(vectorRequestVerify),
}

func vectorRequestSign(in struct {
	Seed, Body              []byte
	DID, Method, URL, Nonce string
	Created                 int64
}) (any, error) {
	u, err := url.Parse(in.URL)
	if err != nil {
		return nil, err
	}
	r := signature.Of(in.Method, u)
	r.Body, r.DID, r.Created, r.Nonce = in.Body, in.DID, in.Created, in.Nonce
	h := make(http.Header)
	err = r.Sign(h, ed25519.NewKeyFromSeed(in.Seed))
	return map[string]string{"base": r.Base(), "signatureInput": h.Get("Signature-Input"), "signature": h.Get("Signature"),
		"contentDigest": h.Get("Content-Digest")}, err
}

func vectorRequestVerify(in struct {
	PublicKey, DID, Method, URL string
	Header                      http.Header
	Body                        []byte
	Now                         time.Time
}) (any, error) {
	u, err := url.Parse(in.URL)
	if err != nil {
		return nil, err
	}
	key, err := ParsePublicKey(in.PublicKey)
	if err != nil {
		return nil, err
	}
	r := signature.Of(in.Method, u)
	r.Body = in.Body
	verify, err := r.Read(in.Header, in.Now)
	if err == nil {
		err = verify(key.ed)
	}
	if err != nil || r.DID != in.DID {
		return nil, ErrUnauthorized.because("", err)
	}
	return r.DID + "#key-1", nil
}

// vectorThreadApply applies a message to the thread of its earlier results.
func vectorThreadApply(in struct {
	Thread        core.Thread
	IsOwn         bool
	ID, InReplyTo string
	Body          []byte
}) (any, error) {
	body, err := DecodeBody(in.Body, ProfileInterop)
	if err == nil {
		in.Thread, err = applyOnce(in.Thread, in.IsOwn, in.ID, in.InReplyTo, body)
	}
	var outstanding *string
	if o := in.Thread.Outstanding(); o != nil {
		outstanding = &o.ID
	}
	return map[string]any{"thread": in.Thread, "outstanding": outstanding}, err
}

// applyOnce applies a message that does not repeat an earlier one.
func applyOnce(th core.Thread, isOwn bool, id, inReplyTo string, body Body) (core.Thread, error) {
	if !isMove(body) {
		return th, nil
	}
	m := messageOf(isOwn, id, inReplyTo, body)
	m.Sum = ""
	next, err := th.Apply(m)
	return next, refused(err)
}

func vectorSigningInput(in struct {
	Envelope []byte
	Form     Form
}) (any, error) {
	return signingInput(in.Envelope, in.Form)
}

func vectorSeal(in struct {
	Random, Body []byte
	To           string
	Binding      Binding
}) (any, error) {
	to, err := ParsePublicKey(in.To)
	if err != nil {
		return nil, err
	}
	return sealWith(bytes.NewReader(in.Random), to, in.Binding, in.Body)
}

func vectorOpen(in struct {
	Seed, Body []byte
	Binding    Binding
}) (any, error) {
	box, err := newBoxKey(in.Seed)
	if err != nil {
		return nil, err
	}
	return box.openBody(in.Binding, in.Body)
}

func vectorX25519(in struct{ Key []byte }) (any, error) {
	key, err := NewPublicKey(in.Key)
	if err != nil {
		return nil, err
	}
	return key.x.Bytes(), nil
}

func vectorAIRID(in struct{ Text string }) (any, error) { return true, validateAIRID(in.Text) }

func vectorDID(in struct {
	Text    string
	Profile Profile
}) (any, error) {
	return parseDID(in.Text, in.Profile)
}

type vectorKey struct {
	Kind string
	Key  []byte
	Text string
}

func (in *vectorKey) kind() keyKind {
	if in.Kind == "x25519" {
		return keyX25519
	}
	return keyEd25519
}

func vectorKeyEncode(in vectorKey) (any, error) {
	text := encodeKey(in.kind(), in.Key)
	if text == "" {
		return nil, ErrBadKey.err("")
	}
	return text, nil
}

func vectorKeyDecode(in vectorKey) (any, error) { return decodeKey(in.kind(), in.Text) }

func vectorDerive(in struct{ Seed []byte }) (any, error) {
	box, err := newBoxKey(in.Seed)
	if err != nil {
		return nil, err
	}
	return map[string][]byte{"private": box.x.Bytes(), "public": box.x.PublicKey().Bytes()}, nil
}

func vectorDocumentURL(in struct{ Base, AIRID string }) (any, error) {
	return documentURL(in.Base, in.AIRID)
}

func vectorErrorDecode(in struct {
	Status  int
	Header  http.Header
	Body    []byte
	Attempt int
	Now     time.Time
}) (any, error) {
	v := classifyResponse(in.Status, in.Header, in.Body, in.Attempt, defaultAttempts, in.Now)
	out := map[string]any{"code": v.Code, "action": v.Action}
	if v.HasRetryAfter {
		out["retryAfterMs"] = v.RetryAfter.Milliseconds()
	}
	if v.AIRID != "" {
		out["airId"] = v.AIRID
	}
	if v.ThreadID != "" {
		out["threadId"] = v.ThreadID
	}
	return out, nil
}
