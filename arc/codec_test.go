// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package arc

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/fivewire/fivewire/arc/internal/wire"
)

const plain = `{"arc":"1.0","id":"r1","method":"task.info","requestAgent":"ui-01","targetAgent":"echo-01","traceId":"wf","params":{"taskId":"t"}}`

// ARC-014: what is not known is kept and written back.
func TestRequestKeepsUnknownMembers(t *testing.T) {
	req, err := DecodeRequest([]byte(`{"x":[1.0,{"y":null}],"arc":"1.0","id":7,"method":"a.b","requestAgent":"a","targetAgent":"b","params":{"n":1E400}}`))
	require.NoError(t, err)
	require.Equal(t, Extra{"x": json.RawMessage(`[1.0,{"y":null}]`)}, req.Extra)
	out, err := AppendRequest(nil, req)
	require.NoError(t, err)
	require.Equal(t, `{"arc":"1.0","id":7,"method":"a.b","requestAgent":"a","targetAgent":"b","params":{"n":1E400},"x":[1.0,{"y":null}]}`, string(out))
}

// ARC-D03: the readable part of a refused request is available to the response.
func TestRefusedRequestIsReadable(t *testing.T) {
	for _, tt := range []struct {
		in                  string
		code                Code
		id                  ID
		requestAgent, trace string
	}{
		{`{"arc":"1.0","id":1.0,"requestAgent":"ui","targetAgent":"x","traceId":"w","params":{}}`, ErrMissingField, "1.0", "ui", "w"},
		{`{"arc":"2.0","id":"r","requestAgent":"ui","traceId":5}`, ErrInvalidVersion, `"r"`, "ui", ""},
		{`{"arc":"1.0","id":null,"requestAgent":"u\ni","traceId":"w"}`, ErrInvalidFieldFormat, "", "", "w"},
		{`{"arc":"1.0","id":"` + strings.Repeat("x", 2000) + `"}`, ErrInvalidFieldFormat, "", "", ""},
		{`{"arc":"1.0","id":"` + strings.Repeat(`\u0061`, 256) + `","method":"` + strings.Repeat("m", 129) + `","requestAgent":"ui"}`, ErrInvalidFieldFormat, ID(`"` + strings.Repeat(`\u0061`, 256) + `"`), "ui", ""},
		{`{"arc":"1.0","id":"r","requestAgent":"ui","requestAgent":"ui"}`, ErrInvalidRequest, "", "", ""},
		{`[1]`, ErrInvalidRequest, "", "", ""},
		{`{`, ErrParse, "", "", ""},
	} {
		req, err := DecodeRequest([]byte(tt.in))
		require.ErrorIs(t, err, tt.code, tt.in)
		require.Equal(t, tt.id, req.ID, tt.in)
		require.Equal(t, tt.requestAgent, req.RequestAgent)
		require.Equal(t, tt.trace, req.TraceID)
	}
}

// ARC-D06: errors.Is finds the general code behind the specific one.
func TestInvalidRequestFamily(t *testing.T) {
	for _, in := range []string{`[]`, `{}`, `{"arc":"2"}`, `{"arc":"1.0","id":true}`} {
		_, err := DecodeRequest([]byte(in))
		require.ErrorIs(t, err, ErrInvalidRequest, in)
	}
	_, err := DecodeRequest([]byte(`{`))
	require.NotErrorIs(t, err, ErrInvalidRequest)
	require.False(t, errors.Is(&Error{Code: ErrMessageTooLarge}, ErrInvalidRequest))
}

// ARC-D02: a number is compared by value at no cost, whatever its exponent.
func TestIDEqual(t *testing.T) {
	for _, tt := range []struct {
		a, b ID
		want bool
	}{
		{`"a"`, `"\u0061"`, true}, {"1e999999999", "10e999999998", true}, {"1", `"1"`, false}, {"1", "1.0", true},
		{"", "", true}, {"null", "null", true}, {"null", `"null"`, false}, {"[1]", "[1.0]", false}, {"x", "y", false},
		{ID(`"a\"b"`), `"a\"b"`, true}, {ID("-7"), "-7", true},
	} {
		require.Equal(t, tt.want, tt.a.Equal(tt.b), "%s %s", tt.a, tt.b)
	}
	require.NotEqual(t, NewID(), NewID()) // ARC-175
}

// ARC-013 and ARC-008: only members of the specification are written.
func TestAppendRequest(t *testing.T) {
	out, err := AppendRequest([]byte("x"), &Request{ID: `"r"`, Method: "m.n", RequestAgent: "a", TargetAgent: "b", Params: json.RawMessage(" { \"k\" :\n1 } ")})
	require.NoError(t, err)
	require.Equal(t, `x{"arc":"1.0","id":"r","method":"m.n","requestAgent":"a","targetAgent":"b","params":{"k":1}}`, string(out))

	for field, req := range map[string]Request{
		"id":           {ID: `[1]`, Method: "m.n", RequestAgent: "a", TargetAgent: "b", Params: json.RawMessage(`{}`)},
		"method":       {ID: `1`, Method: strings.Repeat("m", 129), RequestAgent: "a", TargetAgent: "b", Params: json.RawMessage(`{}`)},
		"requestAgent": {ID: `1`, Method: "m.n", RequestAgent: "a\n", TargetAgent: "b", Params: json.RawMessage(`{}`)},
		"targetAgent":  {ID: `1`, Method: "m.n", RequestAgent: "a", Params: json.RawMessage(`{}`)},
		"traceId":      {ID: `1`, Method: "m.n", RequestAgent: "a", TargetAgent: "b", TraceID: "\x7f", Params: json.RawMessage(`{}`)},
		"params":       {ID: `1`, Method: "m.n", RequestAgent: "a", TargetAgent: "b", Params: json.RawMessage(`{"a":1,"a":2}`)},
	} {
		out, err := AppendRequest([]byte("x"), &req)
		var e *Error
		require.ErrorAs(t, err, &e, field)
		require.Equal(t, field, e.Field())
		require.Equal(t, "x", string(out))
	}
	_, err = AppendRequest(nil, &Request{ID: "1", Method: "m.n", RequestAgent: "a", TargetAgent: "b", Params: json.RawMessage(`{}`), Extra: Extra{"x": json.RawMessage(`{`)}})
	require.Error(t, err)
}

func TestResponse(t *testing.T) {
	res := &Response{ID: "1.0", ResponseAgent: "a", TargetAgent: "b", TraceID: "w", Error: Errorf(ErrTaskNotFound, "no task %d", 7), Extra: Extra{"x": json.RawMessage("1")}}
	res.Error.Details = json.RawMessage("{ \"taskId\": \"t\" }")
	out, err := AppendResponse(nil, res)
	require.NoError(t, err)
	require.Equal(t, `{"arc":"1.0","id":1.0,"responseAgent":"a","targetAgent":"b","traceId":"w","result":null,"error":{"code":-42001,"message":"no task 7","details":{"taskId":"t"}},"x":1}`, string(out))
	got, err := DecodeResponse(out, "1")
	require.NoError(t, err)
	require.ErrorIs(t, got.Error, ErrTaskNotFound)
	require.Equal(t, "w", got.TraceID)
	require.Equal(t, "arc: no task 7 (-42001)", got.Error.Error())

	for _, bad := range []Response{
		{ID: "1"}, {ID: "1", Result: json.RawMessage("{}"), Error: &Error{}}, {ID: "null", Result: json.RawMessage("{}")},
		{ID: "1", Result: json.RawMessage("[]")}, {ID: "1", Result: json.RawMessage("{")}, {ID: "1", Error: &Error{Details: json.RawMessage("{")}},
	} {
		_, err := AppendResponse(nil, &bad)
		require.ErrorIs(t, err, ErrInvalidResponse)
	}
	for in, want := range map[string]error{
		`{"arc":"1.0","id":true,"responseAgent":"a","targetAgent":"b","result":{}}`:                 ErrInvalidResponse,
		`{"arc":"1.0","id":1,"responseAgent":"a","targetAgent":"b","result":{},"traceId":1}`:        ErrInvalidResponse,
		`{"arc":"1.0","id":1,"responseAgent":"a","targetAgent":"b","error":{"code":1.5}}`:           ErrInvalidResponse, // ARC-D68
		`{"arc":"1.0","id":1,"responseAgent":"a","targetAgent":"b","error":{"code":1e30}}`:          ErrInvalidResponse,
		`{"arc":"1.0","id":1,"responseAgent":"a","targetAgent":"b","error":{"code":1,"message":2}}`: ErrInvalidResponse,
		`{"arc":"1.0","id":1,"responseAgent":"a","targetAgent":"b","error":[]}`:                     ErrInvalidResponse,
		`{"arc":"1.0","arc":"1.0"}`: ErrInvalidResponse,
		`[]`:                        ErrInvalidResponse,
		`{"arc":"1.1","id":1}`:      ErrVersionMismatch, // ARC-185
		"\xff":                      ErrInvalidResponse,
	} {
		_, err := DecodeResponse([]byte(in), "1")
		require.ErrorIs(t, err, want, in)
	}
	got, err = DecodeResponse([]byte(`{"arc":"1.0","id":null,"responseAgent":"a","targetAgent":"b","error":{"code":-42001.0},"z":{}}`), "1")
	require.NoError(t, err)
	require.Equal(t, &Error{Code: ErrTaskNotFound, Remote: true}, got.Error)
	require.Equal(t, Extra{"z": json.RawMessage("{}")}, got.Extra)
}

// Every object keeps unknown members, exact numbers included, and values that do not fit into its
// fields (section i.1).
func TestObjectsAreLossless(t *testing.T) {
	for _, tt := range []struct {
		v    json.Unmarshaler
		text string
	}{
		{&Message{}, `{"role":"robot","parts":[],"timestamp":"yesterday","agentId":"a","x":1.50}`},
		{&Message{}, `{"role":"agent","parts":"none","timestamp":5,"agentId":""}`},
		{&Message{}, `{"role":"agent","parts":[1,"a"]}`},
		{&Part{}, `{"type":"VideoPart","content":{"a":1.0},"mimeType":7,"filename":"","size":9007199254740993,"encoding":"utf8","width":1e2,"height":3,"duration":2.50,"x":[]}`},
		{&Part{}, `{"type":"DataPart","content":[1,{"b":2}],"mimeType":"application/json","size":"big"}`},
		{&Part{}, `{"type":"DataPart","content":5}`},
		{&Artifact{}, `{"artifactId":"a","name":"n","description":"d","parts":[{"type":"TextPart","content":"x"}],"mimeType":"m","createdAt":"2024-01-15T10:30:00+01:00","version":"1","createdBy":"b","metadata":{"k":1.0},"z":null}`},
		{&Artifact{}, `{"artifactId":"a","parts":[1],"metadata":5,"name":{}}`},
		{&Task{}, `{"taskId":"t","status":"ODD","createdAt":"c","updatedAt":"u","messages":[{"role":"user","parts":[]}],"artifacts":[{"artifactId":"a"}],"completedAt":"x","canceledAt":"y","failedAt":"z","reason":"r","error":{"code":-1,"message":"m","details":[1.0]},"priority":"HIGH","assignedAgent":"b","metadata":{},"q":1}`},
		{&Task{}, `{"taskId":"t","status":"","messages":[1],"artifacts":5,"error":"boom","metadata":[]}`},
		{&Task{}, `{"taskId":"t","status":"WORKING","messages":7,"artifacts":["a"]}`},
		{&Chat{}, `{"chatId":"c","status":"ACTIVE","message":{"role":"agent","parts":[]},"participants":["a"],"createdAt":"c","updatedAt":"u","closedAt":"x","reason":"r","metadata":{"a":1},"q":[1]}`},
		{&Chat{}, `{"chatId":"c","message":5,"participants":[1],"metadata":1}`},
		{&Chat{}, `{"chatId":"c","participants":"me"}`},
		{&Subscription{}, `{"subscriptionId":"s","taskId":"t","callbackUrl":"u","events":["A"],"createdAt":"c","active":true,"q":1}`},
		{&Error{}, `{"code":-42001,"message":"m","details":{"a":[1.0]}}`},
		{&Notification{}, `{"taskId":"t","event":"TASK_FAILED","timestamp":"2024-01-15T10:30:00.5","data":{"status":"s","message":"","priority":"odd","assignedAgent":"a","createdAt":"2024-01-15T10:30:00Z","startedAt":"2024-01-15T10:30:00Z","pausedAt":"2024-01-15T10:30:00Z","resumedAt":"2024-01-15T10:30:00Z","completedAt":"2024-01-15T10:30:00Z","failedAt":"2024-01-15T10:30:00Z","canceledAt":"2024-01-15T10:30:00Z","changedAt":"2024-01-15T10:30:00Z","duration":1.0,"pauseDuration":2,"estimatedDuration":3,"artifactCount":4,"messageCount":5,"canceledBy":"c","reason":"r","requiredInput":"i","previousStatus":"p","error":{"a":1},"messageContent":{"role":"user","parts":[{"type":"TextPart","content":""}]},"artifact":{"artifactId":"a"},"q":1},"q":2}`},
	} {
		require.NoError(t, tt.v.UnmarshalJSON([]byte(tt.text)), tt.text)
		out, err := tt.v.(json.Marshaler).MarshalJSON()
		require.NoError(t, err)
		require.Equal(t, jsonValue(t, []byte(tt.text)), jsonValue(t, out))
	}
	for _, tt := range []struct {
		v    json.Unmarshaler
		text string
	}{
		{&Message{}, `5`}, {&Message{}, `{"a":1,"a":2}`}, {&Task{}, `{"taskId":""}`}, {&Chat{}, `{}`}, {&Subscription{}, `{}`},
		{&Error{}, `{}`}, {&Notification{}, `{}`}, {&Notification{}, `{`},
	} {
		require.Error(t, tt.v.UnmarshalJSON([]byte(tt.text)), tt.text)
	}
}

// jsonValue returns JSON as Go values with exact numbers.
func jsonValue(t testing.TB, text []byte) any {
	t.Helper()
	v, err := wire.Check(text)
	require.NoError(t, err, string(text))
	return v.Any()
}

// A field that is set wins over what was kept when it could not hold it.
func TestFieldWinsOverExtra(t *testing.T) {
	var m Message
	require.NoError(t, m.UnmarshalJSON([]byte(`{"role":"user","parts":[{"type":"FilePart","content":"","filename":""}],"agentId":""}`)))
	m.AgentID, m.Parts[0].Filename = "a", "f"
	out, err := m.MarshalJSON()
	require.NoError(t, err)
	require.Equal(t, `{"role":"user","parts":[{"type":"FilePart","content":"","filename":"f"}],"agentId":"a"}`, string(out))
}

func TestParamsMarshal(t *testing.T) {
	for method, p := range map[string]json.Marshaler{
		MethodTaskCreate:       CreateTaskParams{InitialMessage: UserText("x"), Metadata: json.RawMessage(`{"a":1}`)},
		MethodTaskSend:         SendTaskParams{TaskID: "t", Message: UserText("x")},
		MethodTaskInfo:         TaskInfoParams{TaskID: "t", OmitMessages: true},
		MethodTaskCancel:       CancelTaskParams{TaskID: "t", Reason: "r"},
		MethodTaskSubscribe:    SubscribeParams{TaskID: "t", CallbackURL: "https://x.example/", Events: []Event{EventNewMessage}},
		MethodTaskNotification: Notification{TaskID: "t", Event: EventNewMessage, Timestamp: "2024-01-15T10:30:00Z", Data: NotificationData{Status: "WORKING", Message: "m", MessageContent: AgentText("x")}},
		MethodChatStart:        StartChatParams{InitialMessage: UserText("x"), ChatID: "c", Stream: true},
		MethodChatMessage:      ChatMessageParams{ChatID: "c", Message: UserText("x")},
		MethodChatEnd:          EndChatParams{ChatID: "c", Reason: "r"},
	} {
		text, err := p.MarshalJSON()
		require.NoError(t, err)
		_, err = wire.Normalize(method, text)
		require.NoError(t, err, "%s: what is written is what a server accepts", method)
	}
	text, err := CreateTaskParams{}.MarshalJSON()
	require.NoError(t, err)
	_, err = wire.Normalize(MethodTaskCreate, text)
	require.ErrorIs(t, asError(err), ErrInvalidParams)
}

// ARC-184: all five part types carry their content there and back.
func TestParts(t *testing.T) {
	data, err := DataPart(map[string]any{"n": json.Number("9007199254740993"), "s": "<&>"})
	require.NoError(t, err)
	_, err = DataPart(func() {})
	require.Error(t, err)
	m := &Message{Role: RoleUser, Parts: []Part{TextPart("a"), data, FilePart("f.pdf", "application/pdf", []byte{0, 255}), ImagePart("image/png", []byte("i")), AudioPart("", []byte("s")), TextPart("b")}}
	require.Equal(t, "ab", m.Text())
	require.Equal(t, "", (*Message)(nil).Text())
	text, err := wire.Normalize(MethodTaskSend, mustJSON(t, SendTaskParams{TaskID: "t", Message: m}))
	require.NoError(t, err)
	var got struct{ Message Message }
	require.NoError(t, json.Unmarshal(text, &got))
	require.Equal(t, m, &got.Message)
	b, err := got.Message.Parts[2].Bytes()
	require.NoError(t, err)
	require.Equal(t, []byte{0, 255}, b)
	require.Equal(t, "application/octet-stream", got.Message.Parts[4].MIMEType)

	var into struct {
		N int64 `json:"n"`
		S string
	}
	require.NoError(t, data.DecodeData(&into))
	require.Equal(t, int64(9007199254740993), into.N)
	require.Empty(t, into.S, "names match exactly")
	inline := Part{Type: PartTypeData, Data: json.RawMessage(`{"n":5}`)}
	require.NoError(t, inline.DecodeData(&into))
	require.Equal(t, int64(5), into.N)
	bad := Part{Type: PartTypeData, Content: `{"n":5,"n":6}`}
	require.Error(t, bad.DecodeData(&into))
	bad = Part{Type: PartTypeFile, Content: "*"}
	require.Error(t, bad.DecodeData(&into))
}

func mustJSON(t testing.TB, v json.Marshaler) []byte {
	t.Helper()
	b, err := v.MarshalJSON()
	require.NoError(t, err)
	return b
}

// ARC-D60
func TestDecodeBase64(t *testing.T) {
	for in, want := range map[string]string{"": "", "aGk=": "hi", "aGk": "hi", " aG\r\nk= ": "hi", "-_-_": "\xfb\xff\xbf", "+/+/": "\xfb\xff\xbf", "YQ==": "a", "YQ": "a"} {
		got, err := decodeBase64(in)
		require.NoError(t, err, in)
		require.Equal(t, want, string(got), in)
	}
	for _, in := range []string{"-+", "a", "aGk==", "====", "a=Gk", "YQ=", "é"} {
		_, err := decodeBase64(in)
		require.Error(t, err, in)
	}
}

// ARC-D63
func TestTimestamp(t *testing.T) {
	for in, want := range map[string]string{
		"2024-01-15T10:30:00Z": "2024-01-15T10:30:00Z", "2024-01-15t10:30:00z": "2024-01-15T10:30:00Z", "2024-01-15T10:30:00": "2024-01-15T10:30:00Z",
		"2024-01-15T10:30:00.1234567891234+01:30": "2024-01-15T09:00:00.123456789Z", "2024-01-15T10:30:00.500-00:00": "2024-01-15T10:30:00.5Z",
	} {
		got, err := Timestamp(in).Time()
		require.NoError(t, err, in)
		require.Equal(t, want, string(NewTimestamp(got)), in)
	}
	for _, in := range []string{"", "2024-01-15", "2024-01-15 10:30:00Z", " 2024-01-15T10:30:00Z", "2024-01-15T10:30:00Z ", "2024-01-15T24:00:00Z", "2024-01-15T10:30:60Z",
		"2024-01-15T10:30:00+0000", "2024-01-15T10:30:00.Z", "2024-01-15T10:30:00,5Z", "2024-02-30T10:30:00Z", "2024-01-15T10:30:00+24:00", "2024-01-15T10:30:00+01:60", "2024-1-15T10:30:00Z", "2024-01-15T1:30:000Z"} {
		_, err := Timestamp(in).Time()
		require.Error(t, err, in)
	}
}

func FuzzDecodeRequest(f *testing.F) {
	f.Add([]byte(plain))
	f.Add([]byte(`{"arc":"1.0","id":1.0e2,"method":"chat.start","requestAgent":"a","targetAgent":"b","params":{"initialMessage":{"role":"user","parts":[{"type":"text","content":"\ud800"}]}},"x":null}`))
	f.Add([]byte(`[{}]`))
	f.Add([]byte(`{"arc":"1.0","id":"r1","method":"task.info","requestAgent":"a","targetAgent":"b","params":{"":"t"}}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		req, err := DecodeRequest(data)
		if err != nil {
			var e *Error
			require.ErrorAs(t, err, &e)
			return
		}
		out, err := AppendRequest(nil, req)
		require.NoError(t, err, "what was read can be written")
		second, err := DecodeRequest(out)
		require.NoError(t, err)
		require.Equal(t, req.ID, second.ID)
		require.Equal(t, jsonValue(t, data), jsonValue(t, out), "and is the same")

		params, err := wire.Normalize(req.Method, req.Params)
		if err != nil {
			var f *wire.Fault
			require.ErrorAs(t, err, &f)
			return
		}
		twice, err := wire.Normalize(req.Method, params)
		require.NoError(t, err, "normal params are normal")
		require.Equal(t, jsonValue(t, params), jsonValue(t, twice))
	})
}

func FuzzDecodeResponse(f *testing.F) {
	f.Add([]byte(`{"arc":"1.0","id":"r1","responseAgent":"a","targetAgent":"b","result":{"success":true},"error":null}`), MethodTaskSend)
	f.Add([]byte(`{"arc":"1.0","id":5,"responseAgent":"a","targetAgent":"b","error":{"code":-42001,"message":"m","details":[1.0]},"traceId":null}`), "x.y")
	f.Add([]byte(`{"arc":"1.0","id":5,"responseAgent":"a","targetAgent":"b","result":{"task":{"taskId":"t","status":"s","messages":[{"parts":[{}]}]}}}`), MethodTaskInfo)
	f.Add([]byte(`{"arc":"1.0","id":5,"responseAgent":"a","targetAgent":"b","result":{"task":{"taskId":"t","status":"s","messages":[{}],"artifacts":[{}]}}}`), MethodTaskInfo)
	f.Fuzz(func(t *testing.T, data []byte, method string) {
		res, err := DecodeResponse(data, "")
		if err != nil {
			require.True(t, errors.Is(err, ErrInvalidResponse) || errors.Is(err, ErrVersionMismatch))
			return
		}
		if res.ID != "null" {
			out, err := AppendResponse(nil, res)
			require.NoError(t, err)
			second, err := DecodeResponse(out, res.ID)
			require.NoError(t, err)
			require.Equal(t, res.ID, second.ID)
		}
		if res.Result == nil {
			return
		}
		if got, err := DecodeResult(method, res.Result); err != nil {
			require.ErrorIs(t, err, ErrInvalidResult)
		} else if got.Task != nil {
			out, err := got.Task.MarshalJSON()
			require.NoError(t, err)
			var second Task
			require.NoError(t, second.UnmarshalJSON(out))
			for i := range got.Task.Messages { // a missing list is written as an empty one
				parts := &got.Task.Messages[i].Parts
				*parts = append(make([]Part, 0, len(*parts)), *parts...)
			}
			require.Equal(t, got.Task, &second)
		}
	})
}
