// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package conformance

import (
	"crypto/ed25519"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"maps"
	"net/http"
	"slices"
	"time"

	"github.com/fivewire/fivewire/air"
	"github.com/fivewire/fivewire/air/airtest"
	"github.com/fivewire/fivewire/air/registry"
	"github.com/fivewire/fivewire/internal/vector"
)

// AIR returns the operations of the A2A Messaging Protocol of the Agent Identity
// Registry, answered by package air.
func AIR() Protocol {
	pure := map[string]func(in *Input) (Answer, error){
		"canonicalize": airCanonicalize,
		"sign":         airSign,
		"verify":       airVerify,
		"validate":     airValidate,
		"compose":      airCompose,
		"key_encode":   airKeyEncode,
		"key_decode":   airKeyDecode,
		"derive":       airDerive,
		"to_x25519":    airToX25519,
		"air_id":       airID,
		"did":          airDID,
		"document_url": airDocumentURL,
		"discover":     airDiscover,
		"signing_key":  airSigningKey,
		"seal":         airSeal,
		"open":         airOpen,
		"service_type": airServiceType,
		"error_encode": airErrorEncode,
		"error_decode": airErrorDecode,

		"request_sign":   airRequestSign,
		"request_verify": airRequestVerify,
	}
	ops := map[string]Op{}
	for name, f := range pure {
		ops[name] = func(_ T, in *Input) (Answer, error) {
			a, err := f(in)
			if err != nil {
				return nil, airFailure(err)
			}
			return a, nil
		}
	}
	maps.Copy(ops, airScripts())
	return Protocol{Name: "air", Ops: ops}
}

// airFailure turns an error of the package into a refusal; any other error
// remains one.
func airFailure(err error) error {
	var e *air.Error
	if !errors.As(err, &e) {
		return err
	}
	var body struct{ Error, Detail string }
	if err := json.Unmarshal(e.HTTPBody(), &body); err != nil {
		return err
	}
	f := &Failure{Code: string(e.Code), Err: err, Fields: Answer{"status": e.HTTPStatus(), "error": body.Error}}
	if body.Detail != "" {
		f.Fields["detail"] = body.Detail
	}
	return f
}

func airHex(in *Input, name string) []byte {
	b, err := hex.DecodeString(in.String(name))
	if err != nil {
		in.Fail(name, "not hexadecimal: %v", err)
	}
	return b
}

func airSeed(in *Input, name string) ed25519.PrivateKey {
	seed := airHex(in, name)
	if len(seed) != ed25519.SeedSize {
		in.Fail(name, "want 32 bytes")
		seed = make([]byte, ed25519.SeedSize)
	}
	return ed25519.NewKeyFromSeed(seed)
}

// airOptional reads a string that may be absent or null.
func airOptional(in *Input, name string) string {
	if in.IsNull(name) {
		return ""
	}
	return in.StringOr(name, "")
}

func airCanonicalize(in *Input) (Answer, error) {
	out, err := air.Canonicalize(in.Wire("wire"))
	return Answer{"canonical": string(out)}, err
}

func airSign(in *Input) (Answer, error) {
	envelope, key, form := in.Wire("envelope"), airSeed(in, "seedHex"), airWord(in, "form", air.FormSpec, air.FormDeployed)
	if err := in.Err(); err != nil {
		return nil, err
	}
	wire, err := air.Sign(envelope, key, form)
	if err != nil {
		return nil, err
	}
	canonical, err := vector.Call[[]byte](airtest.Vector, "signing_input", Answer{"envelope": envelope, "form": form})
	if err != nil {
		return nil, err
	}
	var signed struct{ Signature string }
	if err := json.Unmarshal(wire, &signed); err != nil {
		return nil, err
	}
	sum := sha256.Sum256(canonical)
	return Answer{
		"canonical": string(canonical),
		"sha256Hex": hex.EncodeToString(sum[:]),
		"signature": signed.Signature,
		"publicKey": airMultibase(key.Public().(ed25519.PublicKey)),
		"wire":      string(wire),
	}.Optional(), nil
}

// airWord returns an option that is one of a few words, the first unless it is given.
func airWord[T ~string](in *Input, member string, words ...T) T {
	w := T(in.StringOr(member, string(words[0])))
	if !slices.Contains(words, w) {
		in.Fail(member, "unknown: %s", string(w))
	}
	return w
}

// airProfile returns the profile, or def unless it is given.
func airProfile(in *Input, def air.Profile) air.Profile {
	if !in.Has("profile") {
		return def
	}
	return airWord(in, "profile", air.ProfileSpec, air.ProfileInterop, air.ProfileDeployed)
}

func airVerify(in *Input) (Answer, error) {
	envelope, text, accept := in.Wire("envelope"), in.String("publicKey"), airWord(in, "accept", "both", air.FormSpec, air.FormDeployed)
	if err := in.Err(); err != nil {
		return nil, err
	}
	if accept == "both" {
		accept = ""
	}
	key, err := air.ParsePublicKey(text)
	if err != nil {
		return nil, err
	}
	form, err := air.Verify(envelope, key, accept)
	return Answer{"form": string(form)}, err
}

func airValidate(in *Input) (Answer, error) {
	e, err := air.DecodeEnvelope(in.Wire("envelope"), &air.DecodeOptions{
		Profile:   airProfile(in, ""),
		BodyTypes: in.StringsOr("bodies"),
	})
	if err != nil {
		return nil, err
	}
	return Answer{"type": e.Type}, nil
}

func airCompose(in *Input) (Answer, error) {
	key := airSeed(in, "seedHex")
	draft := &air.Draft{
		ID: in.String("id"), From: in.String("from"), To: in.String("to"), Timestamp: in.String("timestamp"),
		ThreadID: in.String("threadId"), Nonce: in.String("nonce"), InReplyTo: airOptional(in, "inReplyTo"),
		Body: &air.Raw{JSON: in.Wire("body")},
	}
	opts := &air.EnvelopeOptions{Profile: airProfile(in, ""), BodyTypes: in.StringsOr("bodies")}
	if err := in.Err(); err != nil {
		return nil, err
	}
	e, err := air.NewEnvelope(draft, key, opts)
	if err != nil {
		return nil, err
	}
	return Answer{"wire": string(e.Bytes())}, nil
}

// airMultibase returns the text of an Ed25519 key.
func airMultibase(key []byte) string {
	text, _ := vector.Call[string](airtest.Vector, "key_encode", Answer{"key": key})
	return text
}

func airKeyEncode(in *Input) (Answer, error) {
	text, err := vector.Call[string](airtest.Vector, "key_encode",
		Answer{"kind": airWord(in, "kind", "ed25519", "x25519"), "key": airHex(in, "keyHex")})
	return Answer{"multibase": text}, err
}

func airKeyDecode(in *Input) (Answer, error) {
	key, err := vector.Call[[]byte](airtest.Vector, "key_decode",
		Answer{"kind": airWord(in, "kind", "ed25519", "x25519"), "text": in.String("multibase")})
	return Answer{"keyHex": hex.EncodeToString(key)}, err
}

func airDerive(in *Input) (Answer, error) {
	key := airSeed(in, "seedHex")
	pub := key.Public().(ed25519.PublicKey)
	box, err := vector.Call[map[string][]byte](airtest.Vector, "derive", Answer{"seed": key.Seed()})
	if err != nil {
		return nil, err
	}
	return Answer{
		"publicKeyHex":     hex.EncodeToString(pub),
		"publicKey":        airMultibase(pub),
		"x25519PrivateHex": hex.EncodeToString(box["private"]),
		"x25519PublicHex":  hex.EncodeToString(box["public"]),
	}.Optional(), nil
}

func airToX25519(in *Input) (Answer, error) {
	key, err := vector.Call[[]byte](airtest.Vector, "x25519", Answer{"key": airHex(in, "publicKeyHex")})
	return Answer{"x25519PublicHex": hex.EncodeToString(key)}, err
}

func airID(in *Input) (Answer, error) {
	id := in.String("text")
	airProfile(in, "") // the same in all of them
	_, err := vector.Call[bool](airtest.Vector, "air_id", Answer{"text": id})
	return Answer{"airId": id}, err
}

func airDID(in *Input) (Answer, error) {
	d, err := vector.Call[struct{ Host, AIRID string }](airtest.Vector, "did", Answer{"text": in.String("text"), "profile": airProfile(in, "")})
	return Answer{"airId": d.AIRID, "host": d.Host}.Optional(), err
}

func airDocumentURL(in *Input) (Answer, error) {
	u, err := vector.Call[string](airtest.Vector, "document_url",
		Answer{"base": in.StringOr("base", ""), "airID": in.String("airId")})
	return Answer{"url": u}, err
}

func airRequestSign(in *Input) (Answer, error) {
	body, _ := in.WireOr("body")
	out, err := vector.Call[map[string]string](airtest.Vector, "request_sign", Answer{
		"seed": airSeed(in, "seedHex").Seed(), "did": in.String("did"), "method": in.String("method"), "url": in.String("url"),
		"body": body, "created": in.Int64Or("created", 0), "nonce": in.String("nonce")})
	a := Answer{}
	for name, value := range out {
		if value != "" {
			a[name] = value
		}
	}
	return a, err
}

func airRequestVerify(in *Input) (Answer, error) {
	body, _ := in.WireOr("body")
	header := http.Header{}
	in.SetHeaders("headers", header)
	id, err := vector.Call[string](airtest.Vector, "request_verify", Answer{
		"publicKey": in.String("publicKey"), "did": in.String("did"), "method": in.String("method"), "url": in.String("url"),
		"header": header, "body": body, "now": in.Time("now")})
	return Answer{"keyId": id}, err
}

func airDiscover(in *Input) (Answer, error) {
	opts := &air.EndpointOptions{
		Dialect:       airWord(in, "dialect", air.DialectSpec, air.DialectDeployed, air.DialectAuto),
		AllowLoopback: in.Bool("allowLoopback"),
		AllowPrivate:  in.Bool("allowPrivate"),
	}
	document, did := in.Wire("document"), in.String("did")
	d, err := air.DecodeDocument(document)
	if err != nil {
		return nil, err
	}
	e, err := d.Inbox(did, opts)
	return Answer{"endpoint": e.URL, "pull": e.Pull, "ack": e.Ack}.Optional(), err
}

func airSigningKey(in *Input) (Answer, error) {
	document, did := in.Wire("document"), in.String("did")
	d, err := air.DecodeDocument(document)
	if err != nil {
		return nil, err
	}
	key, err := d.SigningKey(did)
	if err != nil {
		return nil, err
	}
	return Answer{"publicKeyHex": hex.EncodeToString(key.Bytes())}, nil
}

func airBinding(in *Input) air.Binding {
	env := in.Object("env")
	return air.Binding{ID: env.String("id"), From: env.String("from"), To: env.String("to"), ThreadID: env.String("thread_id")}
}

func airSeal(in *Input) (Answer, error) {
	recipient, b, body := in.String("recipient"), airBinding(in), in.Wire("body")
	random := append(airHex(in, "ephSecretHex"), airHex(in, "nonceHex")...)
	if err := in.Err(); err != nil {
		return nil, err
	}
	box, err := vector.Call[[]byte](airtest.Vector, "seal",
		Answer{"random": random, "to": recipient, "binding": b, "body": body})
	if err != nil {
		return nil, err
	}
	plain, err := air.Canonicalize(body)
	return Answer{"plaintext": string(plain), "json": json.RawMessage(box)}.Optional(), err
}

func airOpen(in *Input) (Answer, error) {
	key, b, body := airSeed(in, "seedHex"), airBinding(in), in.Wire("body")
	if err := in.Err(); err != nil {
		return nil, err
	}
	plain, err := vector.Call[[]byte](airtest.Vector, "open", Answer{"seed": key.Seed(), "binding": b, "body": body})
	return Answer{"plaintext": string(plain)}, err
}

func airServiceType(in *Input) (Answer, error) {
	st, err := registry.ParseServiceType(in.String("type"))
	form := "short"
	if st.URI {
		form = "uri"
	}
	return Answer{"reserved": st.Reserved, "form": form}.Optional(), err
}

func airErrorEncode(in *Input) (Answer, error) {
	e := &air.Error{
		Code:     air.Code(in.String("code")),
		Message:  in.StringOr("detail", ""),
		AIRID:    in.StringOr("airId", ""),
		ThreadID: in.StringOr("threadId", ""),
	}
	return Answer{"status": e.HTTPStatus(), "json": json.RawMessage(e.HTTPBody())}.Optional(), nil
}

func airErrorDecode(in *Input) (Answer, error) {
	header := http.Header{}
	in.SetHeaders("headers", header)
	var now time.Time
	if in.Has("now") {
		now = in.Time("now")
	}
	body, _ := in.WireOr("body")
	a := Answer{}
	type decoded struct {
		Code, Action, AIRID, ThreadID string
		RetryAfterMs                  *int64
	}
	out, err := vector.Call[decoded](airtest.Vector, "error_decode", Answer{
		"status": in.Int("status"), "header": header, "body": body, "attempt": in.IntOr("attempt", 1), "now": now,
	})
	a["code"], a["action"] = out.Code, out.Action
	if out.RetryAfterMs != nil {
		a["retryAfterMs"] = *out.RetryAfterMs
	}
	if out.AIRID != "" {
		a["airId"] = out.AIRID
	}
	if out.ThreadID != "" {
		a["threadId"] = out.ThreadID
	}
	return a, err
}
