// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package conformance

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"testing"
	"time"

	"github.com/fivewire/fivewire/altar"
)

// Altar returns the operations of package altar.
func Altar() Protocol {
	return Protocol{Name: "altar", Ops: map[string]Op{
		"parse_type":        altarParseType,
		"validate_contract": altarValidateContract,
		"validate_manifest": altarValidateManifest,
		"validate_params":   altarValidateParams,
		"decode":            altarDecode,
		"encode":            altarEncode,
		"frame":             altarFrame,
		"negotiate":         altarNegotiate,
		"resolve_tool":      altarResolveTool,
		"stream_assemble":   altarStreamAssemble,
		"import_adm":        altarImportADM,
		"parse_adm_result":  altarParseADMResult,
		"model_name":        altarModelName,
		"model_arguments":   altarModelArguments,
		"host_script":       altarHostScript,
		"runtime_script":    altarRuntimeScript,
	}}
}

// altarRefused turns an error of the package into a failure.
func altarRefused(err error) error {
	var c *altar.ContractError
	if errors.As(err, &c) {
		f := &Failure{Fields: Answer{"reason": string(c.Reason)}, Err: err}
		if c.Path != "" {
			f.Fields["path"] = c.Path
		}
		return f
	}
	var e *altar.Error
	if !errors.As(err, &e) {
		return err
	}
	f := &Failure{Code: string(e.Code), Fields: Answer{}, Err: err}
	if r := e.Reason(); r != "" {
		f.Fields["reason"] = string(r)
	}
	if p := e.Path(); p != "" {
		f.Fields["path"] = p
	}
	if faults := e.ParamErrors(); faults != nil {
		list := []Answer{}
		for _, p := range faults {
			list = append(list, Answer{"path": p.Path, "reason": string(p.Reason)})
		}
		f.Fields["errors"], f.Fields["faults"], f.Fields["message"] = list, list, e.Message
	}
	return f
}

func altarParseType(_ *testing.T, in *Input) (Answer, error) {
	t, err := altar.ParseParamType(in.String("type"))
	if err != nil {
		return nil, altarRefused(err)
	}
	return Answer{"json": Answer{"base": string(t.Base), "dims": t.Dims}}, nil
}

func altarValidateContract(_ *testing.T, in *Input) (Answer, error) {
	c, err := altar.DecodeContract(in.Wire("wire"))
	if err != nil {
		return nil, altarRefused(err)
	}
	return Answer{"json": c}, nil
}

func altarValidateManifest(_ *testing.T, in *Input) (Answer, error) {
	m, err := altar.DecodeManifest(in.Wire("wire"))
	if err != nil {
		return nil, altarRefused(err)
	}
	return Answer{"json": m}, nil
}

func altarValidateParams(_ *testing.T, in *Input) (Answer, error) {
	contract, wire := in.Wire("contract"), in.Wire("wire")
	o := in.ObjectOr("options")
	opts := &altar.ValidationOptions{DropUnknown: o.Bool("strip_unknown"), AllowNonFinite: o.Bool("non_finite")}
	c, err := altar.DecodeContract(contract)
	if err != nil {
		return nil, err
	}
	v, err := altar.NewValidator(c, opts)
	if err != nil {
		return nil, err
	}
	out, err := v.Append(nil, wire)
	if err != nil {
		return nil, altarRefused(err)
	}
	return Answer{"json": json.RawMessage(out), "wire": string(out)}.Optional(), nil
}

func altarDecode(_ *testing.T, in *Input) (Answer, error) {
	m, err := altar.DecodeMessage(in.Wire("wire"), &altar.DecodeOptions{MaxMessage: in.IntOr("max", 0)})
	if err != nil {
		return nil, altarRefused(err)
	}
	out, err := altar.AppendMessage(nil, m)
	if err != nil {
		return nil, err
	}
	return Answer{"json": json.RawMessage(out)}, nil
}

func altarEncode(_ *testing.T, in *Input) (Answer, error) {
	m, err := altar.DecodeMessage(in.Raw("message"), &altar.DecodeOptions{Strict: true})
	if err != nil {
		return nil, altarRefused(err)
	}
	out, err := altar.AppendMessage(nil, m)
	if err != nil {
		return nil, altarRefused(err)
	}
	return Answer{"wire": string(out)}, nil
}

func altarFrame(_ *testing.T, in *Input) (Answer, error) {
	r := altar.NewFrameReader(bytes.NewReader(in.Wire("wire")), in.IntOr("max", 0))
	list := []Answer{}
	for {
		frame, err := r.Next()
		var e *altar.DecodeError
		switch {
		case err == nil:
			list = append(list, Answer{"frame": string(frame)})
		case errors.As(err, &e):
			list = append(list, Answer{"reason": string(e.Err.Reason())})
		case errors.Is(err, altar.ErrTruncated):
			list = append(list, Answer{"reason": "truncated"})
		case errors.Is(err, io.EOF):
			return Answer{"json": list}, nil
		default:
			return nil, err
		}
	}
}

func altarNegotiate(_ *testing.T, in *Input) (Answer, error) {
	v, err := altar.Negotiate(in.String("host"), in.String("runtime"))
	if err != nil {
		return nil, altarRefused(err)
	}
	return Answer{"effective": v}, nil
}

func altarResolveTool(_ *testing.T, in *Input) (Answer, error) {
	names := in.Strings("contracts")
	has := func(name string) bool { return slices.Contains(names, name) }
	contract, id, err := altar.ResolveTool(has, in.String("tool_name"))
	if err != nil {
		return nil, altarRefused(err)
	}
	out := Answer{"contract": contract}
	if id != "" {
		out["runtime_id"] = id
	}
	return Answer{"json": out}, nil
}

func altarStreamAssemble(_ *testing.T, in *Input) (Answer, error) {
	s := altar.NewCallStream(in.String("invocation_id"))
	payloads := []json.RawMessage{}
	now := time.Time{}
	for _, text := range in.Strings("chunks") {
		m, err := altar.DecodeMessage([]byte(text), nil)
		if err != nil {
			s.Broken(err)
		} else {
			s.Add(m, now)
		}
		for p, ok := s.Next(); ok; p, ok = s.Next() {
			payloads = append(payloads, p)
		}
	}
	out := Answer{"payloads": payloads, "state": "open"}
	done, err := s.End()
	var e *altar.Error
	switch {
	case errors.As(err, &e):
		out["state"], out["code"] = "failed", string(e.Code)
		if r := e.Reason(); r != "" {
			out["reason"] = string(r)
		}
	case err != nil:
		return nil, err
	case done:
		out["state"] = "done"
	}
	return Answer{"json": out}, nil
}

func altarImportADM(_ *testing.T, in *Input) (Answer, error) {
	wire := in.Wire("wire")
	o := in.ObjectOr("options")
	list, err := altar.ImportADM(wire, &altar.ADMOptions{Lossy: o.Bool("lossy")})
	if err != nil {
		return nil, altarRefused(err)
	}
	return Answer{"json": list}, nil
}

func altarParseADMResult(_ *testing.T, in *Input) (Answer, error) {
	r, err := altar.ParseADMResult(in.Wire("wire"))
	if err != nil {
		return nil, altarRefused(err)
	}
	a := Answer{}
	if r.InvocationID != "" {
		a["invocation_id"] = r.InvocationID
	}
	if r.Error == nil {
		a["status"], a["payload"] = "success", r.Payload
		return Answer{"json": a}, nil
	}
	e := Answer{"code": string(r.Error.Code), "message": r.Error.Message}
	if r.Error.Details != nil {
		e["details"] = r.Error.Details
	}
	a["status"], a["error"] = "error", e
	return Answer{"json": a}, nil
}

func altarModelName(_ *testing.T, in *Input) (Answer, error) {
	list, _ := altar.ModelTools([]altar.ToolInfo{{Name: in.String("contract")}}, nil)
	if len(list) != 1 {
		return nil, fmt.Errorf("one contract gives %d tools", len(list))
	}
	return Answer{"name": list[0].Name}, nil
}

func altarModelArguments(_ *testing.T, in *Input) (Answer, error) {
	contract, arguments := in.Wire("contract"), in.Wire("arguments")
	c, err := altar.DecodeContract(contract)
	if err != nil {
		return nil, err
	}
	out, err := altar.ModelArguments(c.Parameters, arguments)
	if err != nil {
		return nil, altarRefused(err)
	}
	return Answer{"json": json.RawMessage(out)}, nil
}
