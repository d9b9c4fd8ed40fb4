// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package conformance

import (
	"encoding/json"
	"errors"

	"github.com/fivewire/fivewire/altar"
	"github.com/fivewire/fivewire/altar/adm"
	"github.com/fivewire/fivewire/altar/altartest"
	"github.com/fivewire/fivewire/altar/llm"
	"github.com/fivewire/fivewire/internal/vector"
)

// Altar returns the operations of package altar.
func Altar() Protocol {
	return Protocol{Name: "altar", Ops: map[string]Op{
		"parse_type":        altarParseType,
		"validate_contract": altarValidateContract,
		"validate_manifest": altarValidateManifest,
		"contract_digest":   altarContractDigest,
		"validate_params":   altarValidateParams,
		"decode":            altarDecode,
		"encode":            altarEncode,
		"frame":             altarFrame,
		"negotiate":         altarNegotiate,
		"resolve_tool":      altarResolveTool,
		"stream_assemble":   altarStreamAssemble,
		"import_adm":        altarImportADM,
		"export_adm":        altarExportADM,
		"parse_adm_result":  altarParseADMResult,
		"model_name":        altarModelName,
		"model_tool":        altarModelTool,
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
	if p := e.StringDetail("path"); p != "" {
		f.Fields["path"] = p
	}
	if faults := e.ParamErrors(); faults != nil {
		short, long := []Answer{}, []Answer{}
		for _, p := range faults {
			short = append(short, Answer{"path": p.Path, "reason": string(p.Reason)})
			a := Answer{"path": p.Path, "reason": string(p.Reason)}
			if p.Expected != "" {
				a["expected"] = p.Expected
			}
			if p.Got != "" {
				a["got"] = p.Got
			}
			long = append(long, a)
		}
		f.Fields["errors"], f.Fields["faults"], f.Fields["message"] = short, long, e.Message
	}
	return f
}

func altarParseType(_ T, in *Input) (Answer, error) {
	out, err := vector.Call[json.RawMessage](altartest.Vector, "parse_type", Answer{"type": in.String("type")})
	return Answer{"json": out}, altarRefused(err)
}

func altarValidateContract(_ T, in *Input) (Answer, error) {
	c, err := altar.DecodeContract(in.Wire("wire"))
	if err != nil {
		return nil, altarRefused(err)
	}
	return Answer{"json": c}, nil
}

func altarValidateManifest(_ T, in *Input) (Answer, error) {
	m, err := altar.DecodeManifest(in.Wire("wire"))
	if err != nil {
		return nil, altarRefused(err)
	}
	return Answer{"json": m}, nil
}

func altarContractDigest(_ T, in *Input) (Answer, error) {
	digest, err := vector.Call[string](altartest.Vector, "contract_digest", Answer{"contract": in.Wire("wire")})
	return Answer{"digest": digest}, altarRefused(err)
}

func altarValidateParams(_ T, in *Input) (Answer, error) {
	contract, wire := in.Wire("contract"), in.Wire("wire")
	o := in.ObjectOr("options")
	if _, err := altar.DecodeContract(contract); err != nil {
		return nil, err
	}
	out, err := vector.Call[[]byte](altartest.Vector, "validate_params",
		Answer{"contract": contract, "params": wire, "dropUnknown": o.Bool("strip_unknown"), "allowNonFinite": o.Bool("non_finite")})
	if err != nil {
		return nil, altarRefused(err)
	}
	return Answer{"json": json.RawMessage(out), "wire": string(out)}.Optional(), nil
}

func altarDecode(_ T, in *Input) (Answer, error) {
	m, err := altar.DecodeMessage(in.Wire("wire"), in.IntOr("max", 0))
	if err != nil {
		return nil, altarRefused(err)
	}
	out, err := altar.AppendMessage(nil, m)
	if err != nil {
		return nil, err
	}
	return Answer{"json": json.RawMessage(out)}, nil
}

func altarEncode(_ T, in *Input) (Answer, error) {
	out, err := vector.Call[[]byte](altartest.Vector, "encode", Answer{"message": []byte(in.Raw("message"))})
	return Answer{"wire": string(out)}, altarRefused(err)
}

func altarFrame(_ T, in *Input) (Answer, error) {
	list, err := vector.Call[[]Answer](altartest.Vector, "frame", Answer{"wire": in.Wire("wire"), "max": in.IntOr("max", 0)})
	return Answer{"json": list}, altarRefused(err)
}

func altarNegotiate(_ T, in *Input) (Answer, error) {
	v, err := vector.Call[string](altartest.Vector, "negotiate",
		Answer{"host": in.String("host"), "runtime": in.String("runtime")})
	return Answer{"effective": v}, altarRefused(err)
}

func altarResolveTool(_ T, in *Input) (Answer, error) {
	out, err := vector.Call[Answer](altartest.Vector, "resolve_tool",
		Answer{"contracts": in.Strings("contracts"), "toolName": in.String("tool_name")})
	if out["runtime_id"] == "" {
		delete(out, "runtime_id")
	}
	return Answer{"json": out}, altarRefused(err)
}

func altarStreamAssemble(_ T, in *Input) (Answer, error) {
	out, err := vector.Call[json.RawMessage](altartest.Vector, "stream_assemble",
		Answer{"invocationID": in.String("invocation_id"), "chunks": in.Strings("chunks")})
	return Answer{"json": out}, altarRefused(err)
}

func altarImportADM(_ T, in *Input) (Answer, error) {
	wire := in.Wire("wire")
	o := in.ObjectOr("options")
	list, err := adm.Import(wire, &adm.ImportOptions{Lossy: o.Bool("lossy")})
	if err != nil {
		return nil, altarRefused(err)
	}
	return Answer{"json": list}, nil
}

func altarExportADM(_ T, in *Input) (Answer, error) {
	m, err := altar.DecodeManifest(in.Wire("wire"))
	if err != nil {
		return nil, altarRefused(err)
	}
	out, err := adm.Export(m)
	if err != nil {
		return nil, altarRefused(err)
	}
	return Answer{"json": json.RawMessage(out)}, nil
}

func altarParseADMResult(_ T, in *Input) (Answer, error) {
	r, err := adm.DecodeResult(in.Wire("wire"))
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

func altarModelName(_ T, in *Input) (Answer, error) {
	list, err := llm.Tools([]altar.ToolInfo{{Name: in.String("contract")}}, llm.OpenAIChat, nil)
	if err != nil {
		return nil, altarRefused(err)
	}
	return Answer{"name": list[0].Name}, nil
}

func altarModelTool(_ T, in *Input) (Answer, error) {
	contract, vendor := in.Wire("contract"), in.String("vendor")
	strict := in.ObjectOr("options").Bool("strict")
	c, err := altar.DecodeContract(contract)
	if err != nil {
		return nil, altarRefused(err)
	}
	list, err := llm.Tools([]altar.ToolInfo{{Name: c.Name, Description: c.Description, Parameters: c.Parameters}}, llm.Vendor(vendor), &llm.ToolsOptions{Strict: strict})
	if err != nil {
		return nil, altarRefused(err)
	}
	return Answer{"json": list[0].JSON}, nil
}

func altarModelArguments(_ T, in *Input) (Answer, error) {
	contract, arguments := in.Wire("contract"), in.Wire("arguments")
	c, err := altar.DecodeContract(contract)
	if err != nil {
		return nil, err
	}
	out, err := llm.Arguments(c.Parameters, arguments)
	if err != nil {
		return nil, altarRefused(err)
	}
	return Answer{"json": out}, nil
}
