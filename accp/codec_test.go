// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package accp_test

import (
	"errors"
	"fmt"
	"math"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/stretchr/testify/require"

	"github.com/fivewire/fivewire/accp"
)

// draftFrames are the complete example frames of the draft (ACCP-028). The field strict reports
// whether the strict grammar accepts them.
var draftFrames = []struct {
	frame  string
	strict bool
}{
	{`@research>done:analyze{d:q3_sales|f:[rev:-12%QoQ,ent_seg:decline,churn:+3.2%]|nx:@strategy:plan}`, false},
	{`@planner>req:schedule{who:@dev_team|when:sprint_14|task:impl_auth_module|pri:high}`, false},
	{`@analyst>qry:lookup{src:$ctx.sales_db|q:revenue_by_region|fmt:summary}`, true},
	{`@orchestrator>sync:state{v:7|delta:{task_3:done,task_4:wip,budget:$42.30}}`, false},
	{`@data_agent>fail:fetch{src:api.crm|err:timeout_30s|retry:3|esc:@supervisor}`, false},
	{`@agent>fail:error{code:E3001|msg:connection_timed_out|retry:true|schema:ER}[mid:abc,seq:4,ts:1714000001]`, true},
	{`@agent>sync:state{v:N+1|delta:{changed_key:new_val,removed_key:null}}`, true},
	{`@planner>req:execute{schema:TA|assignee:@dev|task:auth_module|deadline:sprint_14}`, false},
	{`@orchestrator>sync:registry{v:3|hash:a7f2c1}`, true},
	{`@user>req:chat{content:What_are_Q3_findings?|role:user|turn:1|schema:CH}[mid:...,seq:1]`, true},
	{`@assistant>done:chat{content:Revenue_declined_12%|turn:2|schema:CH}[mid:...,seq:2,cid:...]`, true},
	{`@orchestrator>req:tool{tool:web_search|args:{q:ACCP,max:5}|schema:TC}[mid:m1,seq:1]`, true},
	{`@tool_agent>done:tool{tool:web_search|res:{hits:[...]}|stat:ok|schema:TC}[mid:m2,seq:2,cid:m1]`, true},
	{`@payments>req:transaction{txn:txn_001|amt:142.5|acc:acct_9876|schema:TX}[mid:...,seq:5]`, true},
	{`@payments>done:transaction{txn:txn_001|stat:settled|schema:TX}[mid:...,seq:6,cid:...]`, true},
	{`@streamer>stream:infer{idx:0|tot:3|d:Hello|schema:ST}[mid:m1,seq:1,cid:stream_abc]`, true},
	{`@streamer>stream:infer{idx:1|tot:3|d:world|schema:ST}[mid:m2,seq:2,cid:stream_abc]`, true},
	{`@streamer>stream:infer{idx:2|tot:3|d:!|done:true|schema:ST}[mid:m3,seq:3,cid:stream_abc]`, true},
	{`@planner>req:schedule{asgn:@dev|task:impl_auth|dead:sprint_14|pri:high|schema:TA}[mid:...,seq:8]`, false},
	{`@dev>done:schedule{task:impl_auth|stat:complete|prog:100|schema:TA}[mid:...,seq:9,cid:...]`, true},
}

func TestDraftExamples(t *testing.T) { // ACCP-028, ACCP-116, ACCP-117, ACCP-126
	lenient, strict := accp.Codec{Lenient: true}, accp.Codec{}
	for _, tt := range draftFrames {
		t.Run(tt.frame, func(t *testing.T) {
			m, err := lenient.Decode([]byte(tt.frame))
			require.NoError(t, err)
			out, err := lenient.Append(nil, m)
			require.NoError(t, err)
			decoded, err := strict.Decode(out)
			require.NoError(t, err, "what is written is strict")
			require.True(t, m.Equal(decoded), "%s", out)
			_, err = strict.DecodeRaw([]byte(tt.frame))
			require.Equal(t, tt.strict, err == nil, "%v", err)
		})
	}
}

// The grammar of the draft, piece by piece: header (ACCP-005), params (ACCP-008),
// booleans (ACCP-010, ACCP-023), integers (ACCP-011, ACCP-021), decimals
// (ACCP-012), strings (ACCP-013, ACCP-020), null (ACCP-015), maps (ACCP-017),
// references (ACCP-018), names (ACCP-019), arrays (ACCP-024, ACCP-034).
func TestParseKinds(t *testing.T) {
	tests := []struct {
		text string // a value
		kind accp.Kind
		code error // instead, the refusal by the strict reader
	}{
		{text: "true", kind: accp.KindBool},
		{text: "false", kind: accp.KindBool},
		{text: "True", kind: accp.KindString},
		{text: "TRUE", kind: accp.KindString}, // ACCP-D65
		{text: "0", kind: accp.KindInt},
		{text: "-7", kind: accp.KindInt},
		{text: "9223372036854775808", kind: accp.KindInt},
		{text: "-", kind: accp.KindString},
		{text: "--1", kind: accp.KindString},
		{text: "+5", kind: accp.KindString},
		{text: "1e5", kind: accp.KindString},
		{text: ".5", kind: accp.KindString},
		{text: "5.", kind: accp.KindString},
		{text: "0x10", kind: accp.KindString},
		{text: "1_000", kind: accp.KindString},
		{text: "1.2.3", kind: accp.KindString},
		{text: "00", code: accp.ErrInvalidType},
		{text: "-0", code: accp.ErrInvalidType},
		{text: "01.5", code: accp.ErrInvalidType},
		{text: "1.50", code: accp.ErrInvalidType},
		{text: "-0.0", code: accp.ErrInvalidType},
		{text: "1.2345678", code: accp.ErrInvalidType},
		{text: "1.0", kind: accp.KindDecimal},
		{text: "-0.5", kind: accp.KindDecimal},
		{text: "0.000001", kind: accp.KindDecimal},
		{text: strings.Repeat("9", 128), kind: accp.KindInt},
		{text: strings.Repeat("9", 129), code: accp.ErrParse},
		{text: "1." + strings.Repeat("9", 127), code: accp.ErrParse},
		{text: "~", kind: accp.KindNull},
		{text: "~x", code: accp.ErrParse},
		{text: "x~", code: accp.ErrParse},
		{text: "null", kind: accp.KindString},
		{text: "$a", kind: accp.KindRef},
		{text: "$warm.cp1", kind: accp.KindRef},
		{text: "$ctx.9", kind: accp.KindRef},
		{text: "$cold.s1.k_1", kind: accp.KindRef},
		{text: "$", code: accp.ErrParse},
		{text: "$1", code: accp.ErrParse},
		{text: "$a.", code: accp.ErrParse},
		{text: "$a..b", code: accp.ErrParse},
		{text: "$a-b", code: accp.ErrParse},
		{text: `$a\:b`, code: accp.ErrParse},
		{text: "$a$b", code: accp.ErrParse},
		{text: "[]", kind: accp.KindArray},
		{text: "[1,x,[]]", kind: accp.KindArray},
		{text: "[,]", code: accp.ErrParse},
		{text: "[1,]", code: accp.ErrParse},
		{text: "[1", code: accp.ErrParse},
		{text: "[1}", code: accp.ErrParse},
		{text: "[a:1]", code: accp.ErrParse},
		{text: "{}", kind: accp.KindMap},
		{text: "{a:1,b:{c:~}}", kind: accp.KindMap},
		{text: "{a}", code: accp.ErrParse},
		{text: "{a:}", code: accp.ErrParse},
		{text: "{:1}", code: accp.ErrParse},
		{text: "{a:1,a:2}", code: accp.ErrParse},
		{text: "{a-b:1}", code: accp.ErrParse},
		{text: "[007,]", code: accp.ErrParse}, // the grammar goes first (ACCP-D17)
		{text: "a b", code: accp.ErrParse},
		{text: "a\tb", code: accp.ErrParse},
		{text: "a\x00b", code: accp.ErrParse},
		{text: "a\x7fb", code: accp.ErrParse},
		{text: "a\u00adb", code: accp.ErrParse},
		{text: "a\ufeffb", code: accp.ErrParse},
		{text: "a\U000e0041b", code: accp.ErrParse},
		{text: "a\xffb", code: accp.ErrParse},
		{text: "a\xed\xa0\x80b", code: accp.ErrParse},
		{text: "é", kind: accp.KindString},
		{text: "😀", kind: accp.KindString},
		{text: "+3.2%", kind: accp.KindString}, // symbols stay as they are (ACCP-031)
		{text: `a\>b<c`, kind: accp.KindString},
		{text: "a>b", code: accp.ErrParse},
		{text: `\`, code: accp.ErrParse},
		{text: `\x`, code: accp.ErrParse},
		{text: `\N`, code: accp.ErrParse},
		{text: `a\e`, code: accp.ErrParse},
		{text: `\e\_`, code: accp.ErrParse},
		{text: `a\_`, code: accp.ErrParse},
		{text: `\_`, kind: accp.KindString},
		{text: `\u`, code: accp.ErrParse},
		{text: `\u{`, code: accp.ErrParse},
		{text: `\u{}`, code: accp.ErrParse},
		{text: `\u{41`, code: accp.ErrParse},
		{text: `\u{g}`, code: accp.ErrParse},
		{text: `\u{D800}`, code: accp.ErrParse},
		{text: `\u{110000}`, code: accp.ErrParse},
		{text: `\u{0000041}`, code: accp.ErrParse},
		{text: `\u{10FFFF}`, kind: accp.KindString},
		{text: `\e42`, kind: accp.KindString},
		{text: "", code: accp.ErrParse},
	}
	for _, tt := range tests {
		t.Run(tt.text, func(t *testing.T) {
			var c accp.Codec
			v, err := c.DecodeValue([]byte(tt.text))
			if tt.code != nil {
				require.ErrorIs(t, err, tt.code)
				return
			}
			require.NoError(t, err)
			require.Equal(t, tt.kind.String(), v.Kind().String())
			// A value by itself and one in a frame are the same.
			m, err := c.DecodeRaw([]byte("@a>req:plan{k:" + tt.text + "}"))
			require.NoError(t, err)
			inFrame, _ := m.Params.Get("k")
			require.True(t, v.Equal(inFrame))
		})
	}
}

func TestParseFrameForm(t *testing.T) { // ACCP-005, ACCP-008, ACCP-019, ACCP-132, ACCP-136, ACCP-137, ACCP-D18
	long := strings.Repeat("n", 64)
	params := func(n int) string {
		var b strings.Builder
		for i := range n {
			if i > 0 {
				b.WriteByte('|')
			}
			fmt.Fprintf(&b, "k%d:1", i)
		}
		return b.String()
	}
	meta := func(n int) string { return strings.ReplaceAll(params(n), "|", ",") }
	values := func(n int) string { return "[" + strings.TrimSuffix(strings.Repeat("1,", n), ",") + "]" }
	tests := []struct {
		name, frame string
		code        error
	}{
		{"digit first", "@1a>req:2b{3c:1}", nil},
		{"long names", "@" + long + ">req:" + long + "{" + long + ":1}", nil},
		{"agent too long", "@" + long + "x>req:a{}", accp.ErrParse},
		{"operation too long", "@a>req:" + long + "x{}", accp.ErrParse},
		{"key too long", "@a>req:b{" + long + "x:1}", accp.ErrParse},
		{"intent too long", "@a>" + long + "x:b{}", accp.ErrParse},
		{"unknown intent of 64", "@a>" + long + ":b{}", accp.ErrInvalidIntent},
		{"intent with digit", "@a>req1:b{}", accp.ErrParse},
		{"intent upper case", "@a>REQ:b{}", accp.ErrInvalidIntent},
		{"no intent", "@a>:b{}", accp.ErrParse},
		{"no agent", "@>req:b{}", accp.ErrParse},
		{"no operation", "@a>req:{}", accp.ErrParse},
		{"hyphen in agent", "@a-b>req:c{}", accp.ErrParse},
		{"empty", "", accp.ErrParse},
		{"only at", "@", accp.ErrParse},
		{"no body", "@a>req:b", accp.ErrParse},
		{"empty metadata", "@a>req:b{}[]", accp.ErrParse},
		{"open metadata", "@a>req:b{}[mid:x", accp.ErrParse},
		{"trailing bar", "@a>req:b{k:1|}", accp.ErrParse},
		{"leading bar", "@a>req:b{|k:1}", accp.ErrParse},
		{"comma between params", "@a>req:b{k:1,l:2}", accp.ErrParse},
		{"bar in metadata", "@a>req:b{}[k:1|l:2]", accp.ErrParse},
		{"256 params", "@a>req:b{" + params(256) + "}", nil},
		{"257 params", "@a>req:b{" + params(257) + "}", accp.ErrParse},
		{"32 metadata fields", "@a>req:b{}[" + meta(32) + "]", nil},
		{"33 metadata fields", "@a>req:b{}[" + meta(33) + "]", accp.ErrParse},
		{"4096 values", "@a>req:b{k:" + values(4095) + "}", nil},
		{"4097 values", "@a>req:b{k:" + values(4096) + "}", accp.ErrParse},
		{"65,536 bytes", "@a>req:b{k:" + strings.Repeat("x", 65536-len("@a>req:b{k:}")) + "}", nil},
		{"65,537 bytes", "@a>req:b{k:" + strings.Repeat("x", 65537-len("@a>req:b{k:}")) + "}", accp.ErrParse},
		{"empty array six deep", "@a>req:b{k:[[[[[[]]]]]]}", nil},
		{"a type before an intent", "@a>shout:b{k:007}", accp.ErrInvalidIntent},
		{"grammar before a type", "@a>req:b{k:007|l:}", accp.ErrParse},
		{"metadata spelled twice", "@a>req:b{}[mid:x,mid:y]", accp.ErrParse},
		{"null mid", "@a>req:b{}[mid:~]", accp.ErrInvalidType},
		{"reference as cid", "@a>req:b{}[cid:$ctx.a]", accp.ErrInvalidType},
		{"array as sid", "@a>req:b{}[sid:[1]]", accp.ErrInvalidType},
		{"empty aid", `@a>req:b{}[aid:\e]`, accp.ErrInvalidType},
		{"text as seq", "@a>req:b{}[seq:x]", accp.ErrInvalidType},
		{"seq as string", `@a>req:b{}[seq:\e5]`, accp.ErrInvalidType},
		{"seq of 2^63-1", "@a>req:b{}[seq:9223372036854775807]", nil},
		{"seq of 2^63", "@a>req:b{}[seq:9223372036854775808]", accp.ErrInvalidType},
		{"seq with zero", "@a>req:b{}[seq:01]", accp.ErrInvalidType},
		{"negative ts", "@a>req:b{}[ts:-1]", accp.ErrInvalidType},
		{"decimal ttl", "@a>req:b{}[ttl:1.0]", accp.ErrInvalidType},
		{"seq too long a number", "@a>req:b{}[seq:" + strings.Repeat("1", 129) + "]", accp.ErrParse},
		{"numbers as texts", "@a>req:b{}[cid:42,sid:3.50,aid:true]", nil},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			var c accp.Codec
			m, err := c.DecodeRaw([]byte(tt.frame))
			if tt.code != nil {
				require.ErrorIs(t, err, tt.code)
				require.Nil(t, m, "nothing of a refused frame is used")
				return
			}
			require.NoError(t, err)
			out, err := c.AppendRaw(nil, m)
			require.NoError(t, err)
			decoded, err := c.DecodeRaw(out)
			require.NoError(t, err)
			require.True(t, m.Equal(decoded))
		})
	}
}

// Frames of every size that the attacker may choose cost time in proportion.
func TestDuplicateKeysInLargeMaps(t *testing.T) { // ACCP-D13, ACCP-137
	var b strings.Builder
	b.WriteString("@a>req:b{k:{")
	for i := 3000; i > 0; i-- { // descending, so that the order does not help
		fmt.Fprintf(&b, "k%d:1,", i)
	}
	var c accp.Codec
	_, err := c.DecodeRaw([]byte(b.String() + "x:1}}"))
	require.NoError(t, err)
	_, err = c.DecodeRaw([]byte(b.String() + "k7:1}}"))
	require.ErrorIs(t, err, accp.ErrParse)
}

func TestParseErrorSaysWhere(t *testing.T) {
	var c accp.Codec
	_, err := c.DecodeRaw([]byte("@a>req:plan{x:1|y:}"))
	var e *accp.Error
	require.ErrorAs(t, err, &e)
	require.True(t, e.HasOffset)
	require.Equal(t, len("@a>req:plan{x:1|y:"), e.Offset)
}

func TestLenient(t *testing.T) { // ACCP-D15
	tests := []struct{ text, want string }{ // want is the canonical text, or the code
		{"$42.30", `\$42.30`},
		{"~x", `\~x`},
		{"a,b", `a\,b`},
		{"12:30", `12\:30`},
		{"null", "~"},
		{"[null,x]", "[~,x]"},
		{"[k:1]", "[{k:1}]"},
		{"[k:[a:1,b:2],c]", "[{k:[{a:1},{b:2}]},c]"},
		{"[k: v , w]", "[{k:v},w]"},
		{"[http://x]", `[http\://x]`},
		{"[a.b-c:1]", "E1001"}, // lenient reads the name, strict cannot write it
		{"[k:]", "E1001"},
		{"[a|b]", "E1001"},
		{"a{b", "E1001"},
		{"-0", "0"},
		{"-00", `\e-00`},
		{"007", `\e007`},
		{"1.500", "1.5"},
		{"1.2345678", "1.234568"},
		{"-0.00", "0.0"},
		{"{ a : 1 , b : [ ] }", "{a:1,b:[]}"},
		{"a b", "E1001"},
		{"a\u200bb", "E1001"},
		{`\q`, "E1001"},
		{"[1,,2]", "E1001"},
		{"{a:1,a:2}", "E1001"},
	}
	for _, tt := range tests {
		t.Run(tt.text, func(t *testing.T) {
			c := accp.Codec{Lenient: true}
			v, err := c.DecodeValue([]byte(tt.text))
			var out []byte
			if err == nil {
				out, err = c.AppendValue(nil, v)
			}
			var e *accp.Error
			if errors.As(err, &e) {
				out = []byte(e.Code)
			}
			require.Equal(t, tt.want, string(out))
		})
	}
}

func TestLenientMetadata(t *testing.T) { // ACCP-D13, ACCP-D20, ACCP-D21
	c := accp.Codec{Lenient: true}
	m, err := c.DecodeRaw([]byte("@a>ack:b{}[msg_id:ABCDEF012345,sequence:007,timestamp:05,causation_id:x,ttl:00,more:null]"))
	require.NoError(t, err)
	require.Equal(t, "abcdef012345", m.Meta.MID)
	require.Equal(t, accp.NewOptionalInt(7), m.Meta.Seq)
	require.Equal(t, accp.NewOptionalInt(0), m.Meta.TTL)
	v, _ := m.Meta.Ext.Get("more")
	require.Equal(t, accp.KindNull, v.Kind())
	_, err = c.DecodeRaw([]byte("@a>ack:b{}[mid:a,msg_id:b]"))
	require.ErrorIs(t, err, accp.ErrParse)
	strict := accp.Codec{}
	_, err = strict.DecodeRaw([]byte("@a>ack:b{}[mid:a,msg_id:b]"))
	require.ErrorIs(t, err, accp.ErrParse)
	m, err = strict.DecodeRaw([]byte("@a>ack:b{}[msg_id:b]"))
	require.NoError(t, err, "to the strict reader msg_id alone is an extension")
	require.Equal(t, "b", m.Meta.Ext.Text("msg_id"))
}

// Types survive (ACCP-026), exponents are never written (ACCP-027), decimals have
// at most six places (ACCP-022), maps are sorted (ACCP-025).
func TestEncodeValues(t *testing.T) {
	float := func(f float64) accp.Value {
		v, err := accp.Float(f)
		require.NoError(t, err)
		return v
	}
	dec := func(s string) accp.Value {
		v, err := accp.Decimal(s)
		require.NoError(t, err)
		return v
	}
	tests := []struct {
		value accp.Value
		want  string
	}{
		{accp.Int(1), "1"},
		{dec("1"), "1.0"},
		{accp.String("1"), `\e1`},
		{accp.String("1.0"), `\e1.0`},
		{accp.Bool(true), "true"},
		{accp.String("true"), `\etrue`},
		{accp.Null(), "~"},
		{accp.String("~"), `\~`},
		{accp.Ref("ctx.a"), "$ctx.a"},
		{accp.String("$ctx.a"), `\$ctx.a`},
		{integer(t, "123456789012345678901234567890"), "123456789012345678901234567890"},
		{float(1e21), "1000000000000000000000.0"},
		{float(1e-7), "0.0"},
		{float(1.5e-6), "0.000002"},
		{float(-2.5e-6), "-0.000002"},
		{float(math.Copysign(0, -1)), "0.0"},
		{dec("999999.9999995"), "1000000.0"},
		{dec("-0.9999995"), "-1.0"},
		{dec("0007.10"), "7.1"},
		{accp.Map(accp.Param{Key: "b", Value: accp.Int(1)}, accp.Param{Key: "B", Value: accp.Int(2)}, accp.Param{Key: "_", Value: accp.Int(3)}), "{B:2,_:3,b:1}"},
		{accp.Array(accp.Int(3), accp.Int(1)), "[3,1]"},
		{accp.String("a_b"), "a_b"},
		{accp.String("a_b c"), `\_a\_b_c`},
		{accp.String(" "), `\__`},
		{accp.String("a\nb\r\t"), `a\nb\r\t`},
		{accp.String("\x00\u2028\U000e0001"), `\u{0}\u{2028}\u{E0001}`},
		{accp.String("-"), "-"},
		{accp.String("True"), "True"},
	}
	var c accp.Codec
	for _, tt := range tests {
		t.Run(tt.want, func(t *testing.T) {
			out, err := c.AppendValue(nil, tt.value)
			require.NoError(t, err)
			require.Equal(t, tt.want, string(out))
			back, err := c.DecodeValue(out)
			require.NoError(t, err)
			require.Equal(t, tt.value.Kind(), back.Kind())
		})
	}
}

func TestEncodeRefuses(t *testing.T) { // ACCP-D18, ACCP-D20
	deep := accp.Int(1)
	for range 6 {
		deep = accp.Array(deep)
	}
	one := func(v accp.Value) *accp.Message {
		return &accp.Message{From: "a", Intent: "req", Op: "b", Params: accp.Params{{Key: "k", Value: v}}}
	}
	many := one(accp.Int(1))
	for i := range 256 {
		many.Params = append(many.Params, accp.Param{Key: fmt.Sprint("x", i), Value: accp.Int(1)})
	}
	twice := one(accp.Int(1))
	twice.Params = append(twice.Params, twice.Params[0])
	withMeta := func(m accp.Meta) *accp.Message {
		msg := one(accp.Int(1))
		msg.Meta = &m
		return msg
	}
	tests := []struct {
		name string
		m    *accp.Message
		code error
	}{
		{"depth", one(deep), accp.ErrParse},
		{"params", many, accp.ErrParse},
		{"twice", twice, accp.ErrParse},
		{"frame", one(accp.String(strings.Repeat("x", 65536))), accp.ErrParse},
		{"number", one(integer(t, "1"+strings.Repeat("0", 128))), accp.ErrParse},
		{"key", &accp.Message{From: "a", Intent: "req", Op: "b", Params: accp.Params{{Key: "a.b"}}}, accp.ErrParse},
		{"agent", &accp.Message{From: "", Intent: "req", Op: "b"}, accp.ErrParse},
		{"intent", &accp.Message{From: "a", Intent: "shout", Op: "b"}, accp.ErrInvalidIntent},
		{"intent form", &accp.Message{From: "a", Intent: "re:q", Op: "b"}, accp.ErrParse},
		{"utf-8", one(accp.String("a\xff")), accp.ErrInvalidType},
		{"reference", one(accp.Ref("a..b")), accp.ErrInvalidType},
		{"seq", withMeta(accp.Meta{Seq: accp.NewOptionalInt(-1)}), accp.ErrInvalidType},
		{"extension that is a field", withMeta(accp.Meta{MID: "x", Ext: accp.Params{{Key: "seq", Value: accp.Int(1)}}}), accp.ErrParse},
		{"grammar before type", &accp.Message{From: "-", Intent: "shout", Op: "b", Params: accp.Params{{Key: "k", Value: accp.Ref("")}}}, accp.ErrParse},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			var c accp.Codec
			dst := []byte("before")
			out, err := c.AppendRaw(dst, tt.m)
			require.ErrorIs(t, err, tt.code)
			require.Equal(t, "before", string(out), "nothing is appended")
		})
	}
	_, err := accp.Float(math.NaN())
	require.ErrorIs(t, err, accp.ErrInvalidType)
	_, err = accp.Float(math.Inf(-1))
	require.ErrorIs(t, err, accp.ErrInvalidType)
	exact := accp.Codec{RejectRounding: true}
	v, _ := accp.Decimal("0.1234567")
	_, err = exact.AppendValue(nil, v)
	require.ErrorIs(t, err, accp.ErrInvalidType)
}

func TestPortable(t *testing.T) { // ACCP-D03
	c := accp.Codec{Portable: true}
	for in, want := range map[string]string{"a b": "a_b", "x@y": `x\@y`, "42": "42", "a_b": "a_b"} {
		out, err := c.AppendValue(nil, accp.String(in))
		require.NoError(t, err)
		require.Equal(t, want, string(out))
	}
	for _, in := range []string{"", "é", "a\nb", "\x7f"} {
		_, err := c.AppendValue(nil, accp.String(in))
		require.ErrorIs(t, err, accp.ErrInvalidType, "%q", in)
	}
}

func TestScanner(t *testing.T) { // ACCP-D54
	tests := []struct {
		name, wire string
		want       []string
		code       error
	}{
		{name: "nothing"},
		{name: "blank lines", wire: "\n\r\n@a>ack:b{}\n\n", want: []string{"@a>ack:b{}"}},
		{name: "escapes", wire: `@a>ack:b{k:\{\\}@a>ack:b{k:\u{7D}}[mid:\]]`, want: []string{`@a>ack:b{k:\{\\}`, `@a>ack:b{k:\u{7D}}[mid:\]]`}},
		{name: "junk", wire: "@a>ack:b{}x", want: []string{"@a>ack:b{}"}, code: accp.ErrParse},
		{name: "space", wire: " @a>ack:b{}", code: accp.ErrParse},
		{name: "lone carriage return", wire: "@a>ack:b{}\r@", want: []string{"@a>ack:b{}"}, code: accp.ErrParse},
		{name: "newline inside", wire: "@a>ack:b{\n}", code: accp.ErrParse},
		{name: "newline escaped", wire: "@a>ack:b{k:\\\n}", code: accp.ErrParse},
		{name: "cut in metadata", wire: "@a>ack:b{}[mid:x", code: accp.ErrParse},
		{name: "cut in escape", wire: `@a>ack:b{k:\`, code: accp.ErrParse},
		{name: "too long", wire: "@a>ack:b{k:" + strings.Repeat("x", 100), code: accp.ErrParse},
		{name: "closed before opened", wire: "@a>ack:b}", code: accp.ErrParse},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			var got []string
			var failure error
			for f, err := range accp.ScanFrames(iotest.OneByteReader(strings.NewReader(tt.wire)), 64) {
				require.NoError(t, failure, "an error is the last item")
				if failure = err; err == nil {
					got = append(got, string(f))
				}
			}
			require.ErrorIs(t, failure, tt.code)
			require.Equal(t, tt.want, got)
		})
	}
}

// integer returns an integer of any size.
func integer(t *testing.T, digits string) accp.Value {
	t.Helper()
	v, err := accp.FromJSON([]byte(digits))
	require.NoError(t, err)
	require.Equal(t, accp.KindInt, v.Kind())
	return v
}
