// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package conformance

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"strconv"
	"testing"

	"github.com/fivewire/fivewire/accp"
)

// ACCP returns the operations of package accp.
func ACCP() Protocol {
	return Protocol{Name: "accp", Ops: map[string]Op{
		"parse":              accpParse,
		"format":             accpFormat,
		"encode":             accpEncode,
		"decode":             accpDecode,
		"canonical":          accpCanonical,
		"literal":            accpLiteral,
		"value":              accpValue,
		"decimal":            accpDecimal,
		"key":                accpKey,
		"error-info":         accpErrorInfo,
		"tokens":             accpTokens,
		"frame-budget":       accpFrameBudget,
		"bpe":                accpBPE,
		"scan":               accpScan,
		"delta-apply":        accpDeltaApply,
		"delta-diff":         accpDeltaDiff,
		"registry-canonical": accpRegistryCanonical,
		"registry-hash":      accpRegistryHash,
		"registry-merge":     accpRegistryMerge,
		"mcp-wrap":           accpMCPWrap,
		"mcp-call":           accpMCPCall,
		"a2a-wrap":           accpA2AWrap,
		"a2a-unwrap":         accpA2AUnwrap,
		"a2a-state":          accpA2AState,
		"session-script":     Script{Start: accpStart, Open: openACCPSession}.Run,
		"stream-script":      Script{Start: accpStart, Open: openACCPStream}.Run,
		"http-script":        Script{Start: accpStart, Open: openACCPHTTP}.Run,
		"ws-script":          Script{Start: accpStart, Open: openACCPSocket}.Run,
		"client-script":      Script{Start: accpStart, Open: openACCPClient}.Run,
	}}
}

// accpRefused turns an error of the package into a failure with its code.
func accpRefused(err error) error {
	var e *accp.Error
	if !errors.As(err, &e) {
		return err
	}
	return NewFailure(string(e.Code), err)
}

// accpWire returns the raw text under name with its fill (N letters a).
func accpWire(in *Input, name string) []byte {
	text := in.Wire(name)
	if in.Has("fill") {
		text = bytes.ReplaceAll(text, []byte("<fill>"), bytes.Repeat([]byte("a"), in.Int("fill")))
	}
	return text
}

func accpLenient(in *Input) bool {
	switch mode := in.StringOr("mode", "strict"); mode {
	case "strict":
		return false
	case "lenient":
		return true
	default:
		in.Fail("mode", "unknown mode %q", mode)
		return false
	}
}

// accpJSON reads one of the package's types from its JSON form.
func accpJSON[T any](in *Input, name string) (T, error) {
	var v T
	raw := in.Raw(name)
	if raw == nil {
		in.Fail(name, "missing")
		return v, nil
	}
	var err error
	if u, ok := any(&v).(json.Unmarshaler); ok {
		err = accpRefused(u.UnmarshalJSON(raw))
	}
	return v, err
}

func accpRegistry(in *Input) (*accp.Registry, error) {
	r := accp.NewRegistry()
	if !in.Has("schemas") {
		return r, nil
	}
	for _, o := range in.Objects("schemas") {
		s, err := accpSchema(o)
		if err == nil {
			err = r.Register(s)
		}
		if err != nil {
			return nil, accpRefused(err)
		}
	}
	return r, nil
}

func accpSchema(in *Input) (accp.Schema, error) {
	s := accp.Schema{Name: in.StringOr("name", ""), Code: in.StringOr("code", ""), Fields: in.StringsOr("fields")}
	if raw := in.Raw("version"); raw != nil {
		n, err := strconv.ParseInt(string(raw), 10, 64)
		if err != nil {
			return s, &accp.Error{Code: accp.ErrInvalidType, Cause: err}
		}
		s.Version = n
	}
	if in.Has("defaults") {
		d, err := accpJSON[accp.Params](in, "defaults")
		if err != nil {
			return s, err
		}
		s.Defaults = d
	}
	if in.Has("abbr") {
		s.Abbr = map[string]string{}
		abbr := in.Object("abbr")
		for _, short := range abbr.Names() {
			s.Abbr[short] = abbr.String(short)
		}
	}
	return s, nil
}

func accpParse(_ *testing.T, in *Input) (Answer, error) {
	c := accp.Codec{Lenient: accpLenient(in)}
	m, err := c.DecodeRaw(accpWire(in, "frame"))
	if err != nil {
		return nil, accpRefused(err)
	}
	return Answer{"json": m}, nil
}

func accpFormat(_ *testing.T, in *Input) (Answer, error) {
	m, err := accpJSON[accp.Message](in, "message")
	if err != nil {
		return nil, err
	}
	var c accp.Codec
	frame, err := c.Format(&m)
	if err != nil {
		return nil, accpRefused(err)
	}
	return Answer{"frame": string(frame)}, nil
}

func accpEncode(_ *testing.T, in *Input) (Answer, error) {
	c := accp.Codec{WriteLongKeys: !in.BoolOr("abbreviate", true), KeepDefaults: !in.BoolOr("defaults", true),
		Portable: in.Bool("portable")}
	m, err := accpJSON[accp.Message](in, "message")
	r, err2 := accpRegistry(in)
	if err = errors.Join(err2, err); err != nil {
		return nil, err
	}
	c.Registry = r
	frame, err := c.Encode(&m)
	if err != nil {
		return nil, accpRefused(err)
	}
	return Answer{"frame": string(frame)}, nil
}

func accpDecode(_ *testing.T, in *Input) (Answer, error) {
	c := accp.Codec{Lenient: accpLenient(in), KeepDefaults: !in.BoolOr("defaults", true)}
	frame, envelope := accpWire(in, "frame"), in.Bool("envelope")
	r, err := accpRegistry(in)
	if err != nil {
		return nil, err
	}
	c.Registry = r
	var m *accp.Message
	if envelope {
		m, err = c.DecodeEnvelope(frame)
	} else {
		m, err = c.Decode(frame)
	}
	if err != nil {
		return nil, accpRefused(err)
	}
	return Answer{"json": m}, nil
}

func accpCanonical(_ *testing.T, in *Input) (Answer, error) {
	c := accp.Codec{Lenient: accpLenient(in)}
	frame := accpWire(in, "frame")
	r, err := accpRegistry(in)
	if err != nil {
		return nil, err
	}
	c.Registry = r
	out, err := c.Canonical(frame)
	if err != nil {
		return nil, accpRefused(err)
	}
	return Answer{"frame": string(out)}, nil
}

func accpLiteral(_ *testing.T, in *Input) (Answer, error) {
	c := accp.Codec{Lenient: accpLenient(in)}
	v, err := c.DecodeValue(accpWire(in, "text"))
	if err != nil {
		return nil, accpRefused(err)
	}
	return Answer{"json": v}, nil
}

func accpValue(_ *testing.T, in *Input) (Answer, error) {
	v, err := accpJSON[accp.Value](in, "value")
	if err != nil {
		return nil, err
	}
	var c accp.Codec
	text, err := c.AppendValue(nil, v)
	if err != nil {
		return nil, accpRefused(err)
	}
	return Answer{"text": string(text)}, nil
}

func accpDecimal(_ *testing.T, in *Input) (Answer, error) {
	exact := in.Bool("exact")
	text, err := "", error(nil)
	if in.Has("float64") {
		f, perr := strconv.ParseFloat(in.String("float64"), 64)
		if perr != nil && !errors.Is(perr, strconv.ErrRange) {
			in.Fail("float64", "%v", perr)
		}
		var v accp.Value
		if v, err = accp.Float(f); err == nil {
			text, _ = v.Number()
		}
	} else {
		text = in.String("value")
	}
	if err == nil {
		text, err = accp.CanonicalDecimal(text, exact)
	}
	if err != nil {
		return nil, accpRefused(err)
	}
	return Answer{"text": text}, nil
}

func accpKey(_ *testing.T, in *Input) (Answer, error) {
	r, err := accpRegistry(in)
	if err != nil {
		return nil, err
	}
	full, short, err := r.Key(in.String("key"), in.StringOr("schema", ""))
	if err != nil {
		return nil, accpRefused(err)
	}
	return Answer{"json": Answer{"full": full, "short": short}}, nil
}

func accpErrorInfo(_ *testing.T, in *Input) (Answer, error) {
	i := accp.Code(in.String("code")).Info()
	return Answer{"json": Answer{"code": string(i.Code), "name": i.Name, "category": i.Category,
		"retryable": i.Retryable, "known": i.Known}}, nil
}

func accpTokens(_ *testing.T, in *Input) (Answer, error) {
	return Answer{"json": accp.ApproxCounter{}.Count(string(accpWire(in, "text")))}, nil
}

func accpFrameBudget(_ *testing.T, in *Input) (Answer, error) {
	b, err := accp.MeasureFrame(accpWire(in, "frame"), nil)
	if err != nil {
		return nil, accpRefused(err)
	}
	return Answer{"json": Answer{"header": b.Header, "body": b.Body, "metadata": b.Metadata, "total": b.Total,
		"soft": b.Soft, "hard": b.Hard}}, nil
}

func accpBPE(_ *testing.T, in *Input) (Answer, error) {
	b := accp.NewBPE(in.BytesList("ranksB64"), nil)
	return Answer{"json": b.Encode(in.String("text"))}, nil
}

func accpScan(_ *testing.T, in *Input) (Answer, error) {
	wire := accpWire(in, "wire")
	s := accp.NewScanner(bytes.NewReader(wire), 0)
	frames := []string{}
	var c accp.Codec
	for {
		frame, err := s.Next()
		if err == io.EOF {
			return Answer{"frames": frames}, nil
		}
		if err == nil {
			_, err = c.DecodeRaw(frame)
		}
		if err != nil {
			return nil, accpRefused(err)
		}
		frames = append(frames, string(frame))
	}
}

func accpDeltaApply(_ *testing.T, in *Input) (Answer, error) {
	base, err := accpJSON[accp.Params](in, "base")
	delta, err2 := accpJSON[accp.Params](in, "delta")
	if err = errors.Join(err, err2); err != nil {
		return nil, err
	}
	return Answer{"json": accp.Apply(base, delta)}, nil
}

func accpDeltaDiff(_ *testing.T, in *Input) (Answer, error) {
	before, err := accpJSON[accp.Params](in, "old")
	after, err2 := accpJSON[accp.Params](in, "new")
	if err = errors.Join(err, err2); err != nil {
		return nil, err
	}
	return Answer{"json": accp.Diff(before, after)}, nil
}

func accpRegistryCanonical(_ *testing.T, in *Input) (Answer, error) {
	s, err := accpSchema(in.Object("schema"))
	if err == nil {
		err = s.Validate()
	}
	text := ""
	if err == nil {
		text, err = s.Canonical()
	}
	if err != nil {
		return nil, accpRefused(err)
	}
	return Answer{"text": text}, nil
}

func accpRegistryHash(_ *testing.T, in *Input) (Answer, error) {
	r, err := accpRegistry(in)
	if err != nil {
		return nil, err
	}
	return Answer{"json": Answer{"version": r.Version(), "short": r.Hash()[:12], "full": r.Hash()}}, nil
}

func accpRegistryMerge(_ *testing.T, in *Input) (Answer, error) {
	hash := in.String("hash")
	delta, err := accpJSON[accp.Value](in, "delta")
	r, err2 := accpRegistry(in)
	if err = errors.Join(err2, err); err != nil {
		return nil, err
	}
	if err := r.Merge(delta, hash); err != nil {
		return nil, accpRefused(err)
	}
	codes := r.Codes()
	if codes == nil {
		codes = []string{}
	}
	return Answer{"json": Answer{"version": r.Version(), "full": r.Hash(), "codes": codes}}, nil
}

func accpMCPWrap(_ *testing.T, in *Input) (Answer, error) {
	frame := accpWire(in, "frame")
	var out any
	var err error
	switch as := in.String("as"); as {
	case "resource":
		out, err = accp.ToMCPResource(frame)
	case "toolResult":
		out, err = accp.ToMCPResult(frame)
	default:
		in.Fail("as", "unknown form %q", as)
	}
	if err != nil {
		return nil, accpRefused(err)
	}
	text, err := json.Marshal(out)
	return Answer{"json": json.RawMessage(text)}, err
}

func accpMCPCall(_ *testing.T, in *Input) (Answer, error) {
	var c accp.Codec
	name, args, err := c.ToMCPCall(accpWire(in, "frame"))
	if err != nil {
		return nil, accpRefused(err)
	}
	return Answer{"json": Answer{"name": name, "arguments": args}}, nil
}

func accpA2AWrap(_ *testing.T, in *Input) (Answer, error) {
	part, err := accp.ToA2APart(accpWire(in, "frame"), in.String("version"))
	if err != nil {
		return nil, accpRefused(err)
	}
	return Answer{"json": part}, nil
}

func accpA2AUnwrap(_ *testing.T, in *Input) (Answer, error) {
	frame, err := accp.FromA2APart(in.Raw("part"))
	if err != nil {
		return nil, accpRefused(err)
	}
	return Answer{"frame": string(frame)}, nil
}

func accpA2AState(_ *testing.T, in *Input) (Answer, error) {
	if s := accp.Intent(in.String("intent")).A2AState(); s != "" {
		return Answer{"json": s}, nil
	}
	return Answer{"json": json.RawMessage("null")}, nil
}
