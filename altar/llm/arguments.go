// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package llm

import (
	"bytes"
	"encoding/json"
	"errors"
	"regexp"
	"slices"

	"github.com/fivewire/fivewire/altar"
	"github.com/fivewire/fivewire/altar/internal/form"
	"github.com/fivewire/fivewire/internal/strictjson"
)

var integerText = regexp.MustCompile(`^-?(0|[1-9][0-9]{0,18})$`)

// Arguments returns the arguments that a model wrote for a tool as parameters (ALT-D43). Blank text
// is an empty object, rewritten names are translated back, integers may be strings, and the text of
// a JSON object may replace a free-form object. The Host finds all other faults. The error, for a
// text that is not a JSON object, is an [*altar.Error] that the model can repair.
func Arguments(params []altar.Parameter, arguments []byte) (json.RawMessage, error) {
	if len(bytes.TrimSpace(arguments)) == 0 {
		return json.RawMessage("{}"), nil
	}
	v, reason := form.Check(arguments, maxDepth)
	if reason == "" {
		out := appendObject(nil, params, v)
		_, reason = form.Check(out, maxDepth) // a name may occur in both its forms
		if reason == "" {
			return out, nil
		}
	}
	return nil, altar.Errorf(altar.ErrInvalidParameters, altar.Reason(reason), "the arguments are not a JSON object: %s", reason)
}

func appendObject(dst []byte, params []altar.Parameter, v strictjson.Value) []byte {
	dst = append(dst, '{')
	for m, first := v.Members(), true; m.Next(); first = false {
		if !first {
			dst = append(dst, ',')
		}
		p := parameter(params, string(m.Name))
		if p == nil {
			dst = strictjson.AppendCompact(append(append(dst, m.Key...), ':'), m.Value)
			continue
		}
		dst = append(strictjson.AppendString(dst, p.Name), ':')
		t, reason := form.ParseType(p.Type)
		if reason != "" {
			dst = strictjson.AppendCompact(dst, m.Value) // of a later version
			continue
		}
		dst = appendArgument(dst, p, t, m.Value)
	}
	return append(dst, '}')
}

// parameter returns the parameter of a name, as the contract or as the model has it.
func parameter(params []altar.Parameter, name string) *altar.Parameter {
	for _, nameOf := range []func(string) string{func(s string) string { return s }, form.ModelParameter} {
		i := slices.IndexFunc(params, func(p altar.Parameter) bool { return nameOf(p.Name) == name })
		if i >= 0 {
			return &params[i]
		}
	}
	return nil
}

func appendArgument(dst []byte, p *altar.Parameter, t form.Type, v strictjson.Value) []byte {
	if t.Dims > 0 {
		if !v.IsArray() {
			return strictjson.AppendCompact(dst, v)
		}
		t.Dims--
		dst = append(dst, '[')
		for e, first := v.Elements(), true; e.Next(); first = false {
			if !first {
				dst = append(dst, ',')
			}
			dst = appendArgument(dst, p, t, e.Value)
		}
		return append(dst, ']')
	}
	text, isText := v.TextBytes()
	switch {
	case t.Base == form.KindInteger && isText && integerText.Match(text):
		return append(dst, text...)
	case t.Base == form.KindObject && len(p.Properties) > 0 && v.IsObject():
		return appendObject(dst, p.Properties, v)
	case t.Base == form.KindObject && len(p.Properties) == 0 && isText:
		if object, reason := form.Check(text, maxDepth); reason == "" {
			return strictjson.AppendCompact(dst, object)
		}
	}
	return strictjson.AppendCompact(dst, v)
}

// errorText returns the text of a failed call for a model.
func errorText(err error) string {
	e, ok := errors.AsType[*altar.Error](err)
	if !ok {
		return err.Error()
	}
	return string(e.Code) + ": " + e.Message
}
