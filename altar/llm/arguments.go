// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package llm

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"regexp"

	"github.com/fivewire/fivewire/altar"
	"github.com/fivewire/fivewire/altar/internal/form"
	"github.com/fivewire/fivewire/internal/strictjson"
)

var integerText = regexp.MustCompile(`^-?(0|[1-9][0-9]{0,18})$`)

// Arguments returns the arguments that a model wrote for a tool as parameters (ALT-D43). Blank text
// is an empty object, rewritten names are translated back, integers may be strings, and the text of
// a JSON object may replace a free-form object. The Host finds all other faults. The error, for a
// text that is not a JSON object, is an [*altar.Error] that the model can repair.
func Arguments(params []altar.Parameter, text []byte) (json.RawMessage, error) {
	if len(bytes.TrimSpace(text)) == 0 {
		return json.RawMessage("{}"), nil
	}
	v, reason := form.Check(text, maxDepth)
	if reason == "" {
		a := arguments{}
		out := a.appendObject(nil, params, v)
		_, reason = form.Check(out, maxDepth) // a name may occur in both its forms
		if reason == "" {
			return out, nil
		}
	}
	return nil, altar.Errorf(altar.ErrInvalidParameters, altar.Reason(reason), "the arguments are not a JSON object: %s", reason)
}

// arguments have the parameters of each level by name. The key is the first one of the level.
type arguments map[*altar.Parameter]map[string]*altar.Parameter

func (a arguments) appendObject(dst []byte, params []altar.Parameter, v strictjson.Value) []byte {
	names := a.names(params)
	dst = append(dst, '{')
	for m, first := v.Members(), true; m.Next(); first = false {
		if !first {
			dst = append(dst, ',')
		}
		p, isKnown := names[string(m.Name)]
		if !isKnown {
			dst = strictjson.AppendCompact(append(append(dst, m.Key...), ':'), m.Value)
			continue
		}
		dst = append(strictjson.AppendString(dst, p.Name), ':')
		t, reason := form.ParseType(p.Type)
		if reason != "" {
			dst = strictjson.AppendCompact(dst, m.Value) // of a later version
			continue
		}
		dst = a.appendArgument(dst, p, t, m.Value)
	}
	return append(dst, '}')
}

// names returns the parameters of a level by their names, as the contract and as the model has them.
func (a arguments) names(params []altar.Parameter) map[string]*altar.Parameter {
	if len(params) == 0 {
		return nil
	}
	names := a[&params[0]]
	if names != nil {
		return names
	}
	names = make(map[string]*altar.Parameter, len(params))
	for _, nameOf := range []func(string) string{func(s string) string { return s }, form.ModelParameter} {
		for i := range params {
			name := nameOf(params[i].Name)
			if names[name] == nil {
				names[name] = &params[i]
			}
		}
	}
	a[&params[0]] = names
	return names
}

func (a arguments) appendArgument(dst []byte, p *altar.Parameter, t form.Type, v strictjson.Value) []byte {
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
			dst = a.appendArgument(dst, p, t, e.Value)
		}
		return append(dst, ']')
	}
	text, isText := v.TextBytes()
	switch {
	case t.Base == form.KindInteger && isText && integerText.Match(text):
		return append(dst, text...)
	case t.Base == form.KindObject && len(p.Properties) > 0 && v.IsObject():
		return a.appendObject(dst, p.Properties, v)
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
		return cmp.Or(err.Error(), "the call failed")
	}
	return string(e.Code) + ": " + e.Message
}
