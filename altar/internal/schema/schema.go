// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

// Package schema writes the parameters of contracts as JSON Schema, for the packages that translate
// contracts.
package schema

import (
	"strings"

	"github.com/fivewire/fivewire/altar"
	"github.com/fivewire/fivewire/altar/internal/form"
	"github.com/fivewire/fivewire/internal/strictjson"
)

// Base64 is the contentEncoding of a string that holds bytes.
const Base64 = "base64"

// A Writer writes parameters as JSON Schema. Its zero value loses nothing.
type Writer struct {
	Models bool // no format or contentEncoding, and names that all vendors accept
	Strict bool // for models: each property is required, null stands for a missing one
	ADM    bool // type names in upper case, no format or contentEncoding, and objects are not closed

	TextIntegers bool // for models: an integer is a string of digits
}

// AppendObject appends the schema of an object with parameters as its properties.
func (w *Writer) AppendObject(dst []byte, params []altar.Parameter) []byte {
	dst = w.typeOf(append(dst, `{"type":`...), nil, form.Type{Base: form.KindObject}, false)
	return w.properties(dst, params)
}

// properties appends the properties of a closed object and its closing brace.
func (w *Writer) properties(dst []byte, params []altar.Parameter) []byte {
	dst = append(dst, `,"properties":{`...)
	required := []byte{}
	for i := range params {
		p := &params[i]
		name := p.Name
		if w.Models {
			name = form.ModelParameter(name)
		}
		if i > 0 {
			dst = append(dst, ',')
		}
		dst = append(strictjson.AppendString(dst, name), ':')
		dst = w.parameter(dst, p)
		if p.Required || w.Strict {
			if len(required) > 0 {
				required = append(required, ',')
			}
			required = strictjson.AppendString(required, name)
		}
	}
	dst = append(dst, '}')
	if len(required) > 0 || w.Strict {
		dst = append(append(append(dst, `,"required":[`...), required...), ']')
	}
	if !w.ADM {
		dst = append(dst, `,"additionalProperties":false`...)
	}
	return append(dst, '}')
}

func (w *Writer) parameter(dst []byte, p *altar.Parameter) []byte {
	t, reason := form.ParseType(p.Type)
	description := describe(p.Description, w.note(p, t))
	dst = append(dst, '{')
	if reason != "" { // of a later version: any value
		if description != "" {
			dst = strictjson.AppendString(append(dst, `"description":`...), description)
		}
		return append(dst, '}')
	}
	dst = w.typeOf(append(dst, `"type":`...), p, t, w.Strict && !p.Required)
	if description != "" {
		dst = strictjson.AppendString(append(dst, `,"description":`...), description)
	}
	return w.rest(dst, p, t)
}

// rest appends what follows the type of a schema, and its closing brace.
func (w *Writer) rest(dst []byte, p *altar.Parameter, t form.Type) []byte {
	switch {
	case t.Dims > 0:
		t.Dims--
		dst = w.rest(w.typeOf(append(dst, `,"items":{"type":`...), p, t, false), p, t)
	case t.Base == form.KindObject && len(p.Properties) > 0:
		return w.properties(dst, p.Properties)
	case t.Base == form.KindInteger && !w.Models && !w.ADM:
		dst = append(dst, `,"format":"int64"`...)
	case t.Base == form.KindBinary && !w.Models && !w.ADM:
		dst = append(dst, `,"contentEncoding":"`+Base64+`"`...)
	}
	return append(dst, '}')
}

func (w *Writer) typeOf(dst []byte, p *altar.Parameter, t form.Type, isNullable bool) []byte {
	word := "string"
	switch {
	case t.Dims > 0:
		word = "array"
	case t.Base == form.KindFloat:
		word = "number"
	case t.Base == form.KindInteger && w.TextIntegers:
	case t.Base == form.KindInteger, t.Base == form.KindBoolean, t.Base == form.KindObject && !w.isText(p):
		word = string(t.Base)
	}
	if w.ADM {
		word = strings.ToUpper(word)
	}
	if isNullable {
		return append(dst, `["`+word+`","null"]`...)
	}
	return append(dst, `"`+word+`"`...)
}

// isText reports whether the objects of a parameter are written as JSON text, because a strict
// schema has no free-form objects.
func (w *Writer) isText(p *altar.Parameter) bool {
	return w.Strict && p != nil && len(p.Properties) == 0
}

// note returns the addition of a description to the type of its parameter.
func (w *Writer) note(p *altar.Parameter, t form.Type) string {
	switch {
	case t.Base == form.KindBinary && (w.Models || w.ADM):
		return "(base64)"
	case t.Base == form.KindInteger && w.TextIntegers:
		return "(integer)"
	case t.Base == form.KindObject && w.isText(p):
		return "(JSON text)"
	}
	return ""
}

// describe returns a description that ends with a note, which may be empty.
func describe(description, note string) string {
	if description == "" || note == "" {
		return description + note
	}
	return description + " " + note
}
