// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package chains

import (
	"cmp"
	"encoding/json"
	"math/big"
	"strconv"
	"strings"

	"github.com/fivewire/fivewire/a2e/internal/wire"
	"github.com/fivewire/fivewire/internal/strictjson"
)

// walk returns the value at a path, or null: "$" is the whole scope (A2E-D48) and "$.a.b" a path into it, through
// objects by name and lists by position.
func walk(v strictjson.Value, path string) strictjson.Value {
	rest, ok := strings.CutPrefix(path, "$.")
	if !ok {
		return v
	}
	for name := range strings.SplitSeq(rest, ".") {
		if v = step(v, name); v == nil {
			return strictjson.Value("null")
		}
	}
	return v
}

// step returns the member of an object or the element of a list, or nil.
func step(v strictjson.Value, name string) strictjson.Value {
	if v.IsArray() {
		return element(v, name)
	}
	return v.Get(name)
}

func element(v strictjson.Value, position string) strictjson.Value {
	n, err := strconv.Atoi(position)
	if err != nil || n < 0 {
		return nil
	}
	for e := v.Elements(); e.Next(); n-- {
		if n == 0 {
			return e.Value
		}
	}
	return nil
}

// holds reports whether a condition of a branch holds for the values that find returns for its paths: a path compared
// with a literal by one of == != >= <= > <, or the truth of a path. The empty condition holds. A literal is JSON; any
// other literal is a text, without the quotes of either kind around it. Order is defined between two numbers and between
// two texts only.
func holds(condition string, find func(path string) strictjson.Value) bool {
	condition = strings.TrimSpace(condition)
	if condition == "" {
		return true
	}
	left, operator, right := split(condition)
	if operator == "" {
		return truth(operand(condition, find))
	}
	return compare(operand(left, find), operand(right, find), operator)
}

// isPath reports whether an expression is a path.
func isPath(text string) bool { return text == "$" || strings.HasPrefix(text, "$.") }

// split finds the first operator of a condition outside quotes.
func split(condition string) (left, operator, right string) {
	var quote byte
	for i := 0; i < len(condition); i++ {
		switch c := condition[i]; {
		case quote != 0:
			if c == '\\' && quote == '"' {
				i++
			} else if c == quote {
				quote = 0
			}
		case (c == '"' || c == '\'') && strings.TrimSpace(condition[:i]) == "":
			quote = c // a text on the left
		default:
			for _, op := range [...]string{"==", "!=", ">=", "<=", ">", "<"} {
				if strings.HasPrefix(condition[i:], op) {
					return condition[:i], op, condition[i+len(op):]
				}
			}
		}
	}
	return condition, "", ""
}

func operand(text string, find func(path string) strictjson.Value) strictjson.Value {
	text = strings.TrimSpace(text)
	if isPath(text) {
		return find(text)
	}
	if v, err := strictjson.Check([]byte(text), strictjson.Options{}); err == nil {
		return v
	}
	if n := len(text); n >= 2 && text[0] == '\'' && text[n-1] == '\'' {
		text = text[1 : n-1]
	}
	return strictjson.AppendString(nil, text)
}

func compare(a, b strictjson.Value, operator string) bool {
	switch operator {
	case "==":
		return wire.EqualJSON(json.RawMessage(a), json.RawMessage(b))
	case "!=":
		return !wire.EqualJSON(json.RawMessage(a), json.RawMessage(b))
	}
	if a.Kind() != b.Kind() || a.Kind() != '0' && a.Kind() != '"' {
		return false
	}
	order := 0
	if a.Kind() == '0' {
		order = compareNumbers(a, b)
	} else {
		x, _ := a.Text()
		y, _ := b.Text()
		order = strings.Compare(x, y)
	}
	switch operator {
	case ">=":
		return order >= 0
	case "<=":
		return order <= 0
	case ">":
		return order > 0
	}
	return order < 0
}

// compareNumbers is exact for all numbers but those of more than 1000 digits.
func compareNumbers(a, b strictjson.Value) int {
	x, ok1 := a.Int()
	y, ok2 := b.Int()
	if ok1 && ok2 {
		return cmp.Compare(x, y)
	}
	if isShort(a) && isShort(b) {
		r, ok1 := new(big.Rat).SetString(string(a))
		s, ok2 := new(big.Rat).SetString(string(b))
		if ok1 && ok2 {
			return r.Cmp(s)
		}
	}
	f, _ := json.Number(a).Float64()
	g, _ := json.Number(b).Float64()
	return cmp.Compare(f, g)
}

// isShort reports whether a number can be written out without an exponent in not
// much more than 1000 digits.
func isShort(v strictjson.Value) bool {
	if len(v) > 1000 {
		return false
	}
	i := strings.IndexAny(string(v), "eE")
	if i < 0 {
		return true
	}
	exp, err := strconv.Atoi(string(v[i+1:]))
	return err == nil && -1000 <= exp && exp <= 1000
}

// truth is false for null, false, 0 and empty values.
func truth(v strictjson.Value) bool {
	switch v.Kind() {
	case 'n', 'f', 0:
		return false
	case '"':
		return len(v) > 2
	case '0':
		return !strictjson.EqualNumbers(v, strictjson.Value("0"))
	case '{':
		m := v.Members()
		return m.Next()
	case '[':
		e := v.Elements()
		return e.Next()
	}
	return true
}
