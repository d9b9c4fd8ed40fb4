// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package jsonmap

import (
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math"
	"math/big"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/fivewire/fivewire/internal/guard"
	"github.com/fivewire/fivewire/internal/race"
	"github.com/fivewire/fivewire/internal/strictjson"
)

// A color is an enumeration.
type color string

func (k *color) UnmarshalText(text []byte) error {
	switch string(text) {
	case "red", "green":
		*k = color(text)
		return nil
	}
	return errors.New("red or green")
}

type header struct {
	ID    string `json:"id"`
	Trace string `json:"trace,omitzero"`
}

type part struct {
	Type    color  `json:"type"`
	Content string `json:"content"`
	Data    JSON   `json:"data,omitzero"`
	Extra   Members
}

type message struct {
	Name  string `json:"name"`
	Count int64  `json:"count,omitzero"`
	Small uint8  `json:"small,omitzero"`
	header
	Ratio  *float64          `json:"ratio,omitzero"`
	Parts  []part            `json:"parts"`
	Meta   map[string]string `json:"meta,omitzero"`
	Parent *message          `json:"parent,omitzero"`
	Any    any               `json:"any,omitzero"`
	Raw    json.RawMessage   `json:"raw,omitzero"`
	Flag   bool              `json:"flag,omitzero" jsonmap:"always"`
	Bytes  []byte            `json:"bytes,omitzero"`
	Grid   [][]int           `json:"grid,omitzero"`
	By     map[string]part   `json:"by,omitzero"`
	Extra  Members
}

func (m *message) CheckMember(name string) *Fault {
	if name == "name" && strings.HasPrefix(m.Name, "!") {
		return &Fault{Reason: Invalid}
	}
	return nil
}

func cursor(text string) *strictjson.Cursor {
	return strictjson.NewCursor([]byte(text), strictjson.Options{})
}

func parse[T any](t testing.TB, text string) T {
	t.Helper()
	var v T
	require.Nil(t, Read(cursor(text), &v), text)
	return v
}

func write(t testing.TB, v any) string {
	t.Helper()
	out, err := Append([]byte("keep"), v)
	require.NoError(t, err)
	return strings.TrimPrefix(string(out), "keep")
}

func TestReadAndAppendKeepTheCanonicalText(t *testing.T) {
	for _, text := range []string{
		`{"name":"n","id":"1","parts":[],"flag":false}`,
		`{"name":"n","count":-9007199254740993,"small":255,"id":"1","trace":"t","ratio":0,"parts":[{"type":"red","content":"é\n"},` +
			`{"type":"green","content":"","data":null,"x":{"y":[1.50]}}],"meta":{"a":"b","c":""},"parent":{"name":"","id":"","parts":[],"flag":true},` +
			`"any":{"a":[1e400,null]},"raw":{"b":1},"flag":true,"bytes":"AAEC","grid":[[],[1,2]],"by":{"k":{"type":"red","content":"c"}},"zz":1,"aa":"2"}`,
	} {
		m := parse[message](t, text)
		require.Equal(t, text, write(t, &m))
		require.Equal(t, text, write(t, m), "by value")
		var second message
		require.Nil(t, Read(cursor(text), &second))
		require.Equal(t, m, second)
	}
}

func TestReadTakesMembersInAnyOrderAndForm(t *testing.T) {
	m := parse[message](t, ` { "x" : [ 1 , 2 ] , "parts" : [ ] , "\u0069d" : "1" , "count" : 70e-1 , "small": 2.0, "ratio" : null , "parent":null, "name" : "a" , "raw" : null, "any":null, "trace":null} `)
	require.Equal(t, message{Name: "a", Count: 7, Small: 2, header: header{ID: "1"}, Parts: []part{}, Raw: json.RawMessage("null"), Extra: m.Extra}, m)
	require.Equal(t, `{"x":[1,2]}`, string(m.Extra.Value()), "white space could end a line-delimited message")
}

func TestReadNamesTheFirstFaultInTheOrderOfTheType(t *testing.T) {
	for _, tt := range []struct {
		text, path, pointer string
		reason              Reason
		text2               string
	}{
		{`{"parts":1,"id":2,"name":3}`, "name", "/name", WrongType, "name: wrong type, want string, got number"},
		{`{"parts":1,"id":2}`, "name", "/name", Missing, "name: missing, want string"},
		{`{"name":null}`, "name", "/name", Missing, ""},
		{`{"name":"n","id":"i","parts":[{"type":"red","content":""},{"content":{},"type":"blue"}]}`, "parts[1].type", "/parts/1/type", Invalid,
			"parts[1].type: invalid, want red or green, got blue"},
		{`{"name":"n","id":"i","parts":[],"count":1.5}`, "count", "/count", NotInteger, "count: not integer, want integer, got number"},
		{`{"name":"n","id":"i","parts":[],"count":1e30}`, "count", "/count", OutOfRange, ""},
		{`{"name":"n","id":"i","parts":[],"small":-1}`, "small", "/small", OutOfRange, ""},
		{`{"name":"n","id":"i","parts":[],"small":256}`, "small", "/small", OutOfRange, ""},
		{`{"name":"n","id":"i","parts":[],"ratio":1e999}`, "ratio", "/ratio", OutOfRange, ""},
		{`{"name":"n","id":"i","parts":[],"bytes":"*"}`, "bytes", "/bytes", Invalid, ""},
		{`{"name":"n","id":"i","parts":[],"meta":{"a/b~":1}}`, "meta.a/b~", "/meta/a~1b~0", WrongType, ""},
		{`{"name":"n","id":"i","parts":[],"grid":[[1],[2,true]]}`, "grid[1][1]", "/grid/1/1", WrongType, "grid[1][1]: wrong type, want integer, got boolean"},
		{`{"name":"!","id":1,"parts":[]}`, "name", "/name", Invalid, "name: invalid"},
		{`{"name":"n","id":"i","parts":[],"parent":{"name":"n","id":[],"parts":[]}}`, "parent.id", "/parent/id", WrongType, "parent.id: wrong type, want string, got array"},
		{`{"name":"n","id":"i","parts":[null]}`, "parts[0]", "/parts/0", WrongType, ""},
		{`[]`, "", "", WrongType, "wrong type, want object, got array"},
		{`{"name":1,"id":"i","parts":[]`, "", "", Malformed, "malformed"},
		{`{"name":"n","id":"i","parts":[]} 1`, "", "", Malformed, ""},
		{`{"name":"n","id":"i","parts":[],"x":{"a":1,"a":2}}`, "", "", Malformed, ""},
	} {
		var m message
		f := Read(cursor(tt.text), &m)
		require.NotNil(t, f, tt.text)
		require.Equal(t, []any{tt.path, tt.pointer, tt.reason}, []any{f.Path, f.Pointer, f.Reason}, tt.text)
		if tt.text2 != "" {
			require.EqualError(t, f, tt.text2)
		}
	}
}

func TestReadRefusesIntegersBeyondTheirType(t *testing.T) {
	type sizes struct {
		A int8   `json:"a,omitzero"`
		B uint64 `json:"b,omitzero"`
		C int    `json:"c,omitzero"`
	}
	require.Equal(t, sizes{-128, math.MaxUint64, -1}, parse[sizes](t, `{"a":-128,"b":18446744073709551615,"c":-10e-1}`))
	for _, text := range []string{`{"a":128}`, `{"a":-129}`, `{"b":18446744073709551616}`, `{"b":-1}`, `{"c":9223372036854775808}`} {
		require.Equal(t, OutOfRange, Read(cursor(text), new(sizes)).Reason, text)
	}
}

// After a fault, elements and members are checked without being kept.
func TestReadKeepsOneFault(t *testing.T) {
	if race.Enabled {
		t.Skip("the race detector allocates")
	}
	elements := `{"grid":[[` + strings.Repeat("true,", 900) + `1]]}`
	members := `{"meta":{` + unknown(900) + `}}`
	for _, text := range []string{elements, members} {
		c, data := cursor(text), []byte(text)
		require.Less(t, testing.AllocsPerRun(20, func() {
			c.Reset(data, strictjson.Options{})
			Read(c, new(message))
		}), 40.0)
	}
}

// The first fault is the first one in the order of the type, not of the text.
func TestReadReturnsFirstFaultOfType(t *testing.T) {
	for text, want := range map[string]string{
		`{"parts":[{"type":1},2],"id":3,"meta":{"a":1,"b":"","c":2}}`:              "name missing",
		`{"parts":[{"type":1},2],"id":3,"name":"n","meta":{"a":1}}`:                "id wrong type",
		`{"meta":{"a":1},"parts":[{"type":1},2],"id":"i","name":"n"}`:              "parts[0].type wrong type",
		`{"meta":{"b":"","c":2,"a":1},"parts":[],"id":"i","name":"n"}`:             "meta.c wrong type",
		`{"count":1,"parts":[{"content":"","type":"red"},{}],"id":"i","name":"n"}`: "parts[1].type missing",
		`{"name":1,`: " malformed",
	} {
		f := Read(cursor(text), new(message))
		require.NotNil(t, f, text)
		require.Equal(t, want, f.Path+" "+string(f.Reason), text)
	}
}

// faultsOf is the reference: the faults of a value of encoding/json for a type, in its order.
func faultsOf(t reflect.Type, v any, pointer string) (out []string) {
	fault := func(r Reason) []string { return []string{pointer + " " + string(r)} }
	wrong := func() []string { return fault(WrongType) }
	integer := func(min, max *big.Int) []string {
		n, ok := v.(json.Number)
		if !ok {
			return wrong()
		}
		x, _ := new(big.Rat).SetString(string(n))
		switch {
		case !x.IsInt():
			return fault(NotInteger)
		case x.Num().Cmp(min) < 0 || x.Num().Cmp(max) > 0:
			return fault(OutOfRange)
		}
		return nil
	}
	switch {
	case t == reflect.TypeFor[JSON](), t == reflect.TypeFor[json.RawMessage](), t.Kind() == reflect.Interface:
		return nil
	case t.Kind() == reflect.Pointer:
		if v == nil {
			return nil
		}
		return faultsOf(t.Elem(), v, pointer)
	}
	switch t.Kind() {
	case reflect.String:
		s, ok := v.(string)
		if !ok {
			return wrong()
		}
		if t == reflect.TypeFor[color]() && s != "red" && s != "green" {
			return fault(Invalid)
		}
	case reflect.Bool:
		if _, ok := v.(bool); !ok {
			return wrong()
		}
	case reflect.Int, reflect.Int64:
		return integer(big.NewInt(math.MinInt64), big.NewInt(math.MaxInt64))
	case reflect.Uint8:
		return integer(big.NewInt(0), big.NewInt(255))
	case reflect.Float64:
		n, ok := v.(json.Number)
		if !ok {
			return wrong()
		}
		if _, err := strconv.ParseFloat(string(n), 64); err != nil {
			return fault(OutOfRange)
		}
	case reflect.Slice:
		if t.Elem().Kind() == reflect.Uint8 {
			s, ok := v.(string)
			if !ok {
				return wrong()
			}
			if _, err := base64.StdEncoding.Strict().DecodeString(s); err != nil {
				return fault(Invalid)
			}
			return nil
		}
		list, ok := v.([]any)
		if !ok {
			return wrong()
		}
		for i, e := range list {
			out = append(out, faultsOf(t.Elem(), e, pointer+"/"+strconv.Itoa(i))...)
		}
	case reflect.Map:
		object, ok := v.(map[string]any)
		if !ok {
			return wrong()
		}
		for _, k := range slices.Sorted(maps.Keys(object)) {
			out = append(out, faultsOf(t.Elem(), object[k], pointer+"/"+pointerEscapes.Replace(k))...)
		}
	case reflect.Struct:
		object, ok := v.(map[string]any)
		if !ok {
			return wrong()
		}
		for _, sf := range reflect.VisibleFields(t) {
			name, option, _ := strings.Cut(sf.Tag.Get("json"), ",")
			if name == "" {
				continue
			}
			e, isPresent := object[name]
			holdsNull := sf.Type == reflect.TypeFor[JSON]() || sf.Type == reflect.TypeFor[json.RawMessage]() || sf.Type.Kind() == reflect.Interface
			switch {
			case isPresent && (e != nil || holdsNull):
				out = append(out, faultsOf(sf.Type, e, pointer+"/"+name)...)
				if s, _ := e.(string); t == reflect.TypeFor[message]() && name == "name" && strings.HasPrefix(s, "!") {
					out = append(out, pointer+"/name "+string(Invalid))
				}
			case option == "" && sf.Type.Kind() != reflect.Pointer:
				out = append(out, pointer+"/"+name+" "+string(Missing))
			}
		}
	}
	return out
}

// bigExponent reports whether a text has a number that the reference cannot hold.
func bigExponent(data []byte) bool {
	for i, k := range data {
		if k|0x20 == 'e' && i+4 < len(data) && strings.Trim(string(data[i+1:i+5]), "+-0123456789") == "" {
			return true
		}
	}
	return false
}

// holdLaws checks the laws of reading and writing for one text.
func holdLaws(t *testing.T, data []byte) {
	v, err := strictjson.Check(data, strictjson.Options{MaxNames: 1000, MaxName: 1024})
	c := strictjson.NewCursor(data, strictjson.Options{})
	var m message
	f := Read(c, &m)
	if err != nil {
		require.Equal(t, err, c.Err(), "%q", data)
		require.Equal(t, &Fault{Reason: Malformed}, f, "%q", data)
		return
	}
	require.NoError(t, c.Err(), "%q", data)
	if !bigExponent(data) {
		want := faultsOf(reflect.TypeFor[message](), v.Any(), "")
		if f == nil {
			require.Empty(t, want, "%q", data)
		} else {
			got := f.Pointer + " " + string(f.Reason)
			require.Contains(t, want, got, "%q", data)
			if i := slices.Index(want, got); i > 0 {
				require.Regexp(t, "^(/parent)*/(meta|by)/", want[0], "%q", data) // members of a map have no order
			}
		}
	}
	if f != nil {
		return
	}
	first, err := Append(nil, &m)
	require.NoError(t, err, "%q", data)
	_, err = strictjson.Check(first, strictjson.Options{})
	require.NoError(t, err, "%q", data)
	var reread, third message
	require.Nil(t, Read(strictjson.NewCursor(first, strictjson.Options{}), &reread), "%q", first)
	second, err := Append(nil, &reread)
	require.NoError(t, err)
	require.Equal(t, string(first), string(second))
	require.Nil(t, Read(strictjson.NewCursor(second, strictjson.Options{}), &third))
	require.Equal(t, reread, third)
	if w, err := strictjson.Check(first, strictjson.Options{}); err == nil { // what is written is what was read
		for k := w.Members(); k.Next(); {
			if x := v.Get(string(k.Name)); x != nil && string(k.Name) != "any" && x.Kind() != '0' && x.Kind() != '[' && x.Kind() != '{' && x.Kind() != 'n' {
				require.True(t, strictjson.Equal(x, k.Value), "%q: %s", data, k.Name)
			}
		}
	}
}

func lawTexts() []string {
	return []string{
		`{"name":"n","id":"1","parts":[],"flag":false}`, `{"name":"n","id":"1","parts":[{"type":"red","content":"x","data":{"a" : 1},"q":1}],"meta":{"a":"b"},"zz":[1, 2]}`,
		`{"parts":[{"type":"blue"},1,null,{"type":"red","content":1}],"count":1.5,"small":300,"ratio":"x","grid":[[1],[true],2],"by":{"a":{},"b":null}}`,
		`{"name":"!","id":null,"parent":{"parent":{"name":"a","id":"b","parts":[],"bytes":"AA=="}},"bytes":"A","raw": [ 1 ],"any":{"x":null}}`,
		`{"name":"n","name":"m"}`, `{"na\u006de":"n"}`, "[]", "null", "1", `{"name":"n"`, `{"flag":1,"count":"1","trace":[],"meta":{"a":{}}}`,
		`{"count":1e2,"small":1e2,"name":"\ud83d\ude00","id":"\u0000"}`, `{"bytes":"AB==","count":9223372036854775808,"small":-0}`,
	}
}

func TestLaws(t *testing.T) {
	for _, text := range lawTexts() {
		holdLaws(t, []byte(text))
	}
}

func FuzzLaws(f *testing.F) {
	for _, text := range lawTexts() {
		f.Add([]byte(text))
	}
	f.Fuzz(holdLaws)
}

func TestCheckRefusesTypes(t *testing.T) {
	type noTag struct{ A string }
	type option struct {
		A string `json:"a,string"` //nolint:staticcheck // the option is the mistake
	}
	type noName struct {
		A string `json:",omitempty"`
	}
	type twice struct {
		header
		Other string `json:"id"`
	}
	type channel struct {
		A chan int `json:"a"`
	}
	type embedded struct {
		*header
	}
	type always struct {
		A int `json:"a" jsonmap:"always"`
	}
	type extras struct{ A, B Members }
	type deep struct {
		A map[string][]*noTag `json:"a"`
	}
	type list []list
	for _, v := range []any{list{}, noTag{}, option{}, noName{}, twice{}, channel{}, embedded{}, always{}, extras{}, deep{}, map[int]string{}, func() {}, [2]int{}} {
		typ := reflect.TypeOf(v)
		err := Check(typ)
		require.Error(t, err, typ)
		p := reflect.New(typ)
		f := Read(cursor(`{"a":1}`), p.Interface())
		require.NotNil(t, f)
		require.Equal(t, BadType, f.Reason)
		_, err2 := Append(nil, v)
		require.Equal(t, err, err2)
	}
	unexported := reflect.StructField{Name: "a", PkgPath: "p", Type: reflect.TypeFor[int](), Tag: `json:"a"`}
	require.Error(t, Check(reflect.StructOf([]reflect.StructField{unexported})))
	many := make([]reflect.StructField, maxFields+1)
	for i := range many {
		many[i] = reflect.StructField{Name: "F" + strconv.Itoa(i), Type: reflect.TypeFor[int](), Tag: reflect.StructTag(fmt.Sprintf(`json:"f%d"`, i))}
	}
	require.Error(t, Check(reflect.StructOf(many)))
	require.NoError(t, Check(reflect.StructOf(many[1:])))
	require.NoError(t, Check(reflect.TypeFor[*message]()))
	require.Equal(t, BadType, Read(cursor("1"), 1).Reason)
	require.Equal(t, BadType, Read(cursor("1"), (*int)(nil)).Reason)
}

// own reads and writes itself.
type own struct{ n int64 }

func (o *own) ReadJSON(c *strictjson.Cursor) *Fault {
	v, _ := c.Number()
	o.n, _ = v.Int()
	if o.n == 0 {
		c.Skip()
		return &Fault{Reason: Invalid}
	}
	return nil
}

func (o *own) AppendJSON(b []byte) ([]byte, *Fault) { return strconv.AppendInt(b, o.n, 10), nil }

func TestTypesMapThemselves(t *testing.T) {
	type holder struct {
		Own    own             `json:"own"`
		List   []*own          `json:"list"`
		Time   time.Time       `json:"time,omitzero"`
		Big    *big.Int        `json:"big,omitzero"`
		Num    json.Number     `json:"num"`
		Float  float32         `json:"float"`
		Colors map[color]color `json:"-"`
	}
	text := `{"own":1,"list":[2,null],"time":"2026-01-02T03:04:05Z","big":123456789012345678901234567890,"num":1.50,"float":1e-7}`
	h := parse[holder](t, text)
	require.Equal(t, int64(2), h.List[0].n)
	require.Equal(t, text, write(t, &h))
	require.Equal(t, text, write(t, h))
	require.Equal(t, "7", write(t, &own{7}))
	require.Equal(t, "null", write(t, (*own)(nil)))
	require.Equal(t, "null", write(t, nil))
	var o own
	require.Nil(t, Read(cursor("7"), &o))
	f := Read(cursor(`{"own":1,"list":[5,0],"num":1,"float":1}`), &h)
	require.Equal(t, "list[1]", f.Path)
	f = Read(cursor(`{"own":1,"list":[],"time":"x","num":1,"float":1}`), &h)
	require.Equal(t, "time invalid", f.Path+" "+string(f.Reason))
}

func TestReadInvertsNegatedBooleans(t *testing.T) {
	type stream struct {
		Quiet bool `json:"loud,omitzero" jsonmap:"not"`
	}
	for text, want := range map[string]bool{`{}`: false, `{"loud":false}`: true, `{"loud":true}`: false} {
		require.Equal(t, stream{want}, parse[stream](t, text), text)
	}
	require.Equal(t, `{}`, write(t, stream{}))
	require.Equal(t, `{"loud":false}`, write(t, stream{true}))
	require.Equal(t, WrongType, Read(cursor(`{"loud":1}`), new(stream)).Reason)
}

// checked counts the calls of CheckMember.
type checked struct {
	A     int64 `json:"a,omitzero"`
	B     int64 `json:"b,omitzero"`
	names []string
}

func (m *checked) CheckMember(name string) *Fault {
	m.names = append(m.names, name)
	return nil
}

func TestCheckMemberIsCalledForPresentMembers(t *testing.T) {
	m := parse[checked](t, `{"b":0,"a":0}`)
	require.Equal(t, []string{"a", "b"}, m.names)
	m = parse[checked](t, `{"b":null}`)
	require.Empty(t, m.names)
	m = checked{B: 1}
	require.Equal(t, `{"b":1}`, write(t, &m))
	require.Equal(t, []string{"b"}, m.names)
}

func TestAppendRefusesValues(t *testing.T) {
	type loop struct {
		Next *loop `json:"next,omitzero"`
		List []any `json:"list,omitzero"`
	}
	endless := &loop{}
	endless.Next = endless
	list := make([]any, 1)
	list[0] = list
	ok := func() message { return message{header: header{ID: "1"}} }
	utf, check, raw, anys, nan := ok(), ok(), ok(), ok(), ok()
	utf.Meta = map[string]string{"k": "\xff"}
	check.Parent = &message{Name: "!"}
	raw.Raw = json.RawMessage("{")
	anys.Any = []any{1, make(chan int)}
	x := math.NaN()
	nan.Ratio = &x
	for path, v := range map[string]any{
		"meta.k": &utf, "parent.name": &check, "raw": &raw, "any[1]": &anys, "ratio": &nan,
	} {
		out, err := Append([]byte("keep"), v)
		var f *Fault
		require.ErrorAs(t, err, &f)
		require.Equal(t, path, f.Path)
		require.Equal(t, "keep", string(out))
	}
	for _, v := range []any{endless, list} {
		_, err := Append(nil, v)
		require.ErrorContains(t, err, "fewer levels")
	}
}

func TestJSONIsCheckedOnce(t *testing.T) {
	j, err := NewJSON([]byte(` { "a" : [ 1 ] } `))
	require.NoError(t, err)
	require.Equal(t, `{"a":[1]}`, string(j.Value()))
	text := []byte("[1]")
	j, err = NewJSON(text)
	require.NoError(t, err)
	text[1] = '\n'
	require.Equal(t, "[1]", string(j.Value()), "the caller keeps its buffer")
	_, err = NewJSON([]byte(`{"a":1,"a":2}`))
	require.Error(t, err)
	var zero JSON
	require.Equal(t, "null", write(t, zero))
	out, err := json.Marshal(struct{ J JSON }{j})
	require.NoError(t, err)
	require.Equal(t, `{"J":[1]}`, string(out))
	require.NoError(t, json.Unmarshal([]byte(`[ 2 ]`), &j))
	require.Equal(t, "[2]", string(j.Value()))
	require.Error(t, j.UnmarshalJSON([]byte("x")))

	// The members of one type do not double those that another type names.
	object, err := NewJSON([]byte(`{"content":1,"z":2}`))
	require.NoError(t, err)
	p := part{Type: "red", Extra: NewMembers(object)}
	require.Equal(t, `{"type":"red","content":"","z":2}`, write(t, p))
	empty, err := NewJSON([]byte(`[]`))
	require.NoError(t, err)
	require.Equal(t, Members{}, NewMembers(empty))
}

// Reading allocates once for each string, slice, map and pointer.
func TestReadAllocatesOncePerValue(t *testing.T) {
	if race.Enabled {
		t.Skip("the race detector allocates")
	}
	type item struct {
		S string   `json:"s"`
		P *int64   `json:"p"`
		L []string `json:"l"`
	}
	type all struct {
		N     int64             `json:"n"`
		S     string            `json:"s"`
		Items []item            `json:"items"`
		Map   map[string]string `json:"map"`
		Raw   JSON              `json:"raw"`
		X     JSON              `json:"x,omitzero"`
	}
	c := strictjson.NewCursor(nil, strictjson.Options{})
	var v all
	count := func(text string) float64 {
		data := []byte(text)
		return testing.AllocsPerRun(200, func() {
			c.Reset(data, strictjson.Options{})
			v = all{}
			if f := Read(c, &v); f != nil {
				panic(f)
			}
		})
	}
	list := func(n int, e string) string { return "[" + strings.TrimSuffix(strings.Repeat(e+",", n), ",") + "]" }
	require.Equal(t, 1.0, count(`{"n":1,"s":"","items":[],"map":{},"raw":{"a":[1]}}`), "an empty map")
	require.Equal(t, 2.0, count(`{"n":1,"s":"xx","items":[],"map":{},"raw":1}`), "a string")
	require.Equal(t, 3.0, count(`{"n":1,"s":"xx","items":[{"s":"","p":null,"l":[]}],"map":{},"raw":1}`), "a slice")
	require.Equal(t, 3.0+50+50, count(`{"n":1,"s":"xx","items":`+list(50, `{"s":"yy","p":1,"l":[]}`)+`,"map":{},"raw":1}`), "strings and pointers of elements")
	require.Equal(t, 3.0+50+50*50, count(`{"n":1,"s":"xx","items":`+list(50, `{"s":"","p":null,"l":`+list(50, `"zz"`)+`}`)+`,"map":{},"raw":1}`), "slices in slices")
	var members strings.Builder
	for i := range 100 {
		fmt.Fprintf(&members, `,"key%d":"vv"`, i)
	}
	keys := make([]string, 100)
	base := testing.AllocsPerRun(200, func() {
		m := make(map[string]string, 100)
		for i := range keys {
			keys[i] = fmt.Sprint("key", 1000+i)[:6] + string("value"[i%3:][:2])
			m[strings.Clone(keys[i])] = strings.Clone(keys[i])
		}
		v.Map = m
	}) - 100*testing.AllocsPerRun(200, func() { keys[0] = fmt.Sprint("key", 1001)[:6] + string("value"[1:][:2]) })
	require.LessOrEqual(t, count(`{"n":1,"s":"","items":[],"map":{`+members.String()[1:]+`},"raw":1}`), base, "a map")
	out := make([]byte, 0, 4096)
	src := parse[all](t, `{"n":1,"s":"x","items":`+list(9, `{"s":"y","p":1,"l":["a"]}`)+`,"map":{},"raw":[1]}`)
	require.Zero(t, testing.AllocsPerRun(200, func() { _, _ = Append(out, &src) }), "writing")
}

// A reader that keeps a short value does not keep the buffers of a long one.
func TestBuffersKeepNothing(t *testing.T) {
	b := newBuffers(reflect.TypeFor[[]string]())
	buf := b.get()
	for i := range 100 {
		buf.at(i).SetString("x")
	}
	b.put(buf, 100)
	for _, s := range buf.v.Interface().([]string) {
		require.Empty(t, s)
	}
	large := b.get()
	for i := range maxBuffer + 1 {
		large.at(i).SetString("x")
	}
	b.put(large, maxBuffer+1)
	require.Equal(t, "x", large.v.Index(0).String(), "a large buffer is left to the garbage collector")
}

func TestReadIsLinear(t *testing.T) {
	if race.Enabled || testing.Short() {
		t.Skip("measures time")
	}
	const start = `{"name":"n","id":"1","parts":[],`
	shapes := func(n int) map[string]string {
		return map[string]string{
			"bad elements":  start + `"grid":[` + strings.TrimSuffix(strings.Repeat("true,", n/5), ",") + `]}`,
			"nested":        start + `"parent":` + strings.Repeat(start+`"parent":`, 100) + "null" + strings.Repeat("}", 101),
			"rows":          start + `"grid":[` + strings.TrimSuffix(strings.Repeat("[1,2,3,4,5,6,7,8,9],", n/20), ",") + `]}`,
			"parts":         start + `"grid":[],"x":[` + strings.TrimSuffix(strings.Repeat(`{"type":"red"},`, n/15), ",") + `]}`,
			"empty parts":   `{"parts":[` + strings.TrimSuffix(strings.Repeat(`{},`, n/3), ",") + `]}`,
			"unknown names": start + `"by":{"k":{` + unknown(999) + `}},"x":[` + strings.TrimSuffix(strings.Repeat("{"+unknown(999)+"},", n/9000), ",") + `]}`,
			"names":         "{" + unknown(n/9) + "}",
			"string":        start + `"trace":"` + strings.Repeat(`\u0061`, n/6) + `"}`,
			"any":           start + `"any":` + strings.Repeat(`[`, 100) + strings.TrimSuffix(strings.Repeat(`{"a":["0123456789012345678901234567890123456789"]},`, n/52), ",") + strings.Repeat("]", 100) + `}`,
			"spaced":        start + `"zz":[` + strings.TrimSuffix(strings.Repeat("1, ", n/3), ", ") + `]}`,
		}
	}
	const size = 16 << 20
	small, large := shapes(size/8), shapes(size)
	run := func(text string) time.Duration {
		begin := time.Now()
		var m message
		if f := Read(cursor(text), &m); f == nil && m.Any == nil {
			_, _ = Append(nil, &m)
		}
		return time.Since(begin)
	}
	for name, text := range large {
		require.Eventually(t, func() bool { // a busy machine can delay one of these, but not all of them
			a, b := run(small[name]), run(text)
			t.Logf("%-14s %8.1f ms", name, float64(b.Microseconds())/1000)
			return b < 32*a+300*time.Millisecond
		}, time.Minute, time.Millisecond, name)
	}
}

func unknown(n int) string {
	var b strings.Builder
	for i := range n {
		fmt.Fprintf(&b, `"%x":1,`, i)
	}
	return strings.TrimSuffix(b.String(), ",")
}

// A panicking type panics in all methods that the package calls.
type panicking struct{}

func (panicking) MarshalJSON() ([]byte, error)  { panic("MarshalJSON failed") }
func (*panicking) UnmarshalJSON(_ []byte) error { panic("UnmarshalJSON failed") }
func (panicking) MarshalText() ([]byte, error)  { panic("MarshalText failed") }
func (*panicking) UnmarshalText(_ []byte) error { panic("UnmarshalText failed") }

type panickingText struct{}

func (panickingText) MarshalText() ([]byte, error)  { panic("MarshalText failed") }
func (*panickingText) UnmarshalText(_ []byte) error { panic("UnmarshalText failed") }

type panickingMembers struct {
	A int `json:"a"`
}

func (*panickingMembers) CheckMember(string) error { panic("CheckMember failed") }

func (*panickingMembers) ReadMember(string, json.RawMessage) bool { panic("ReadMember failed") }

// A method of a type that panics is a fault of its value, and the rest is read.
func TestMethodsPanic(t *testing.T) {
	type nested struct {
		X map[string]panicking `json:"x"`
	}
	for text, dst := range map[string]any{
		`{"x":{"y":"b"},"z":1}`: new(nested),
		`"a"`:                   new(panickingText),
		`{"a":"b"}`:             new(panickingMembers),
		`{"a":1}`:               new(panickingMembers),
	} {
		c := cursor(text)
		f := Read(c, dst)
		require.NotNil(t, f, text)
		var p *guard.PanicError
		require.ErrorAs(t, f, &p, text)
		require.NotContains(t, f.Error(), "failed", text)
		require.NoError(t, c.Err(), text)
		require.Equal(t, len(text), c.Offset(), text)
	}
	for _, src := range []any{panicking{}, panickingText{}, &nested{X: map[string]panicking{"y": {}}}, []any{panicking{}}, map[string]any{"a": panickingText{}}} {
		b, err := Append([]byte("start"), src)
		var p *guard.PanicError
		require.ErrorAs(t, err, &p, "%T", src)
		require.NotContains(t, err.Error(), "failed", "%T", src)
		require.Equal(t, "start", string(b))
	}
}
