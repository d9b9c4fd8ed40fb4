// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package conformance

import (
	"bytes"
	"encoding/json"
	"errors"
	"strconv"

	"github.com/fivewire/fivewire/accp"
	"github.com/fivewire/fivewire/accp/accptest"
	"github.com/fivewire/fivewire/accp/profile"
	"github.com/fivewire/fivewire/internal/vector"
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
		"digest":             accpDigest,
		"checkpoint-id":      accpCheckpointID,
		"table":              accpTable,
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
	schemas, err := accpSchemas(in)
	if err != nil {
		return nil, accpRefused(err)
	}
	for _, s := range schemas {
		if err := r.Register(s); err != nil {
			return nil, accpRefused(err)
		}
	}
	return r, nil
}

func accpSchemas(in *Input) ([]accp.Schema, error) {
	out := []accp.Schema{}
	if !in.Has("schemas") {
		return out, nil
	}
	for _, o := range in.Objects("schemas") {
		s, err := accpSchema(o)
		if err != nil {
			return nil, err
		}
		out = append(out, s)
	}
	return out, nil
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

func accpParse(_ T, in *Input) (Answer, error) {
	c := accp.Codec{Lenient: accpLenient(in)}
	m, err := c.DecodeRaw(accpWire(in, "frame"))
	if err != nil {
		return nil, accpRefused(err)
	}
	return Answer{"json": m}, nil
}

func accpFormat(_ T, in *Input) (Answer, error) {
	m, err := accpJSON[accp.Message](in, "message")
	if err != nil {
		return nil, err
	}
	var c accp.Codec
	frame, err := c.AppendRaw(nil, &m)
	if err != nil {
		return nil, accpRefused(err)
	}
	return Answer{"frame": string(frame)}, nil
}

func accpEncode(_ T, in *Input) (Answer, error) {
	c := accp.Codec{WriteLongKeys: !in.BoolOr("abbreviate", true), KeepDefaults: !in.BoolOr("defaults", true),
		Portable: in.Bool("portable")}
	m, err := accpJSON[accp.Message](in, "message")
	r, err2 := accpRegistry(in)
	if err = errors.Join(err2, err); err != nil {
		return nil, err
	}
	c.Registry = r
	frame, err := c.Append(nil, &m)
	if err != nil {
		return nil, accpRefused(err)
	}
	return Answer{"frame": string(frame)}, nil
}

func accpDecode(_ T, in *Input) (Answer, error) {
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

func accpCanonical(_ T, in *Input) (Answer, error) {
	c := accp.Codec{Lenient: accpLenient(in)}
	frame := accpWire(in, "frame")
	r, err := accpRegistry(in)
	if err != nil {
		return nil, err
	}
	c.Registry = r
	m, err := c.Decode(frame)
	var out []byte
	if err == nil {
		out, err = c.Append(nil, m)
	}
	if err != nil {
		return nil, accpRefused(err)
	}
	return Answer{"frame": string(out)}, nil
}

func accpLiteral(_ T, in *Input) (Answer, error) {
	c := accp.Codec{Lenient: accpLenient(in)}
	v, err := c.DecodeValue(accpWire(in, "text"))
	if err != nil {
		return nil, accpRefused(err)
	}
	return Answer{"json": v}, nil
}

func accpValue(_ T, in *Input) (Answer, error) {
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

func accpDecimal(_ T, in *Input) (Answer, error) {
	exact := in.Bool("exact")
	var v accp.Value
	var err error
	if in.Has("float64") {
		f, perr := strconv.ParseFloat(in.String("float64"), 64)
		if perr != nil && !errors.Is(perr, strconv.ErrRange) {
			in.Fail("float64", "%v", perr)
		}
		var params accp.Params
		params, err = accp.Marshal(struct{ V float64 }{f})
		v, _ = params.Get("v")
	} else {
		v, err = accp.Decimal(in.String("value"))
	}
	text := []byte(nil)
	if err == nil {
		text, err = (&accp.Codec{RejectRounding: exact}).AppendValue(nil, v)
	}
	if err != nil {
		return nil, accpRefused(err)
	}
	return Answer{"text": string(text)}, nil
}

func accpKey(_ T, in *Input) (Answer, error) {
	schemas, err := accpSchemas(in)
	if err != nil {
		return nil, accpRefused(err)
	}
	return accpVector("key", Answer{"schemas": schemas, "key": in.String("key"), "schema": in.StringOr("schema", "")})
}

func accpErrorInfo(_ T, in *Input) (Answer, error) {
	i := accp.Code(in.String("code")).Info()
	return Answer{"json": Answer{"code": string(i.Code), "name": i.Name, "category": i.Category,
		"retryable": i.Retryable, "known": i.Known}}, nil
}

func accpTokens(_ T, in *Input) (Answer, error) {
	return Answer{"json": accp.ApproxCounter{}.Count(string(accpWire(in, "text")))}, nil
}

func accpFrameBudget(_ T, in *Input) (Answer, error) {
	b, err := accp.MeasureFrame(accpWire(in, "frame"), nil)
	if err != nil {
		return nil, accpRefused(err)
	}
	return Answer{"json": Answer{"header": b.Header, "body": b.Body, "metadata": b.Metadata, "total": b.Total,
		"soft": b.Soft, "hard": b.Hard}}, nil
}

func accpBPE(_ T, in *Input) (Answer, error) {
	ranks, err := vector.Call[json.RawMessage](accptest.Vector, "bpe",
		Answer{"ranks": in.BytesList("ranksB64"), "text": in.String("text")})
	return Answer{"json": ranks}, err
}

func accpScan(_ T, in *Input) (Answer, error) {
	wire := accpWire(in, "wire")
	frames := []string{}
	var c accp.Codec
	for frame, err := range accp.ScanFrames(bytes.NewReader(wire), 0) {
		if err == nil {
			_, err = c.DecodeRaw(frame)
		}
		if err != nil {
			return nil, accpRefused(err)
		}
		frames = append(frames, string(frame))
	}
	return Answer{"frames": frames}, nil
}

func accpDeltaApply(_ T, in *Input) (Answer, error) {
	base, err := accpJSON[accp.Params](in, "base")
	delta, err2 := accpJSON[accp.Params](in, "delta")
	if err = errors.Join(err, err2); err != nil {
		return nil, err
	}
	return accpVector("delta-apply", Answer{"state": base, "other": delta})
}

func accpDeltaDiff(_ T, in *Input) (Answer, error) {
	before, err := accpJSON[accp.Params](in, "old")
	after, err2 := accpJSON[accp.Params](in, "new")
	if err = errors.Join(err, err2); err != nil {
		return nil, err
	}
	return accpVector("delta-diff", Answer{"state": before, "other": after})
}

func accpRegistryCanonical(_ T, in *Input) (Answer, error) {
	s, err := accpSchema(in.Object("schema"))
	if err != nil {
		return nil, accpRefused(err)
	}
	text, err := vector.Call[string](accptest.Vector, "registry-canonical", s)
	if err != nil {
		return nil, accpRefused(err)
	}
	return Answer{"text": text}, nil
}

func accpRegistryHash(_ T, in *Input) (Answer, error) {
	schemas, err := accpSchemas(in)
	if err != nil {
		return nil, accpRefused(err)
	}
	return accpVector("registry-hash", Answer{"schemas": schemas})
}

func accpRegistryMerge(_ T, in *Input) (Answer, error) {
	hash := in.String("hash")
	delta, err := accpJSON[accp.Value](in, "delta")
	if err != nil {
		return nil, err
	}
	schemas, err := accpSchemas(in)
	if err != nil {
		return nil, accpRefused(err)
	}
	return accpVector("registry-merge", Answer{"schemas": schemas, "delta": delta, "hash": hash})
}

func accpDigest(_ T, in *Input) (Answer, error) {
	v, err := accpJSON[accp.Value](in, "value")
	if err != nil {
		return nil, err
	}
	out, err := vector.Call[json.RawMessage](accptest.Vector, "digest", v)
	if err != nil {
		return nil, accpRefused(err)
	}
	return Answer{"json": out}, nil
}

func accpCheckpointID(_ T, in *Input) (Answer, error) {
	return accpVector("checkpoint-id", Answer{"frames": in.Strings("frames"), "summary": in.String("summary")})
}

func accpTable(_ T, in *Input) (Answer, error) {
	var rows []accp.Params
	for _, raw := range in.RawList("rows") {
		var row accp.Params
		if err := row.UnmarshalJSON(raw); err != nil {
			return nil, accpRefused(err)
		}
		rows = append(rows, row)
	}
	table, err := profile.TableOf(rows)
	if err != nil {
		return nil, accpRefused(err)
	}
	columns, _ := table.Get("columns")
	list, _ := table.Get("rows")
	return Answer{"json": Answer{"columns": columns, "rows": list}}, nil
}

func accpMCPWrap(_ T, in *Input) (Answer, error) {
	op := map[string]string{"resource": "mcp-resource", "toolResult": "mcp-result", "plain": "mcp-plain"}[in.String("as")]
	if op == "" {
		in.Fail("as", "unknown form %q", in.String("as"))
	}
	return accpVector(op, Answer{"frame": accpWire(in, "frame")})
}

func accpMCPCall(_ T, in *Input) (Answer, error) {
	return accpVector("mcp-call", Answer{"frame": accpWire(in, "frame")})
}

func accpA2AWrap(_ T, in *Input) (Answer, error) {
	return accpVector("a2a-wrap", Answer{"frame": accpWire(in, "frame"), "version": in.String("version")})
}

func accpA2AUnwrap(_ T, in *Input) (Answer, error) {
	frame, err := vector.Call[string](accptest.Vector, "a2a-unwrap", []byte(in.Raw("part")))
	if err != nil {
		return nil, accpRefused(err)
	}
	return Answer{"frame": frame}, nil
}

func accpA2AState(_ T, in *Input) (Answer, error) {
	state, err := vector.Call[string](accptest.Vector, "a2a-state", in.String("intent"))
	if err != nil || state == "" {
		return Answer{"json": json.RawMessage("null")}, err
	}
	return Answer{"json": state}, nil
}

// accpVector answers with the result of an operation of package accptest.
func accpVector(op string, in Answer) (Answer, error) {
	out, err := vector.Call[json.RawMessage](accptest.Vector, op, in)
	if err != nil {
		return nil, accpRefused(err)
	}
	return Answer{"json": out}, nil
}
