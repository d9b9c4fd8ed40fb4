// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package arc

import (
	"strings"

	"github.com/fivewire/fivewire/internal/strictjson"
)

// The older dialect (ARC-D69): its method names, its streamId for chatId, and its
// scopes. It is translated at the edge only.

func legacyMethod(method string) string {
	switch method {
	case "task.get":
		return MethodTaskInfo
	case "stream.start":
		return MethodChatStart
	case "stream.message":
		return MethodChatMessage
	case "stream.end":
		return MethodChatEnd
	}
	return ""
}

// translate makes a call of the older dialect one of ours.
func (x *exchange) translate() {
	m := legacyMethod(x.call.Method)
	if m == "" {
		return
	}
	x.legacy = strings.HasPrefix(x.call.Method, "stream.")
	x.call.Method = m
	if x.legacy {
		x.call.Params = rename(strictjson.Value(x.call.Params), "streamId", "chatId")
	}
}

// rename gives a member of an object another name. If that is taken, nothing
// changes.
func rename(v strictjson.Value, from, to string) []byte {
	if v.Get(from) == nil || v.Get(to) != nil {
		return v
	}
	w := writer{b: make([]byte, 0, len(v)+len(to))}
	w.open()
	for m := v.Members(); m.Next(); {
		name := string(m.Name)
		if name == from {
			name = to
		}
		if w.b[len(w.b)-1] != '{' {
			w.b = append(w.b, ',')
		}
		w.b = append(strictjson.AppendString(w.b, name), ':')
		w.b = strictjson.AppendCompact(w.b, m.Value)
	}
	w.close()
	return w.b
}

// legacyResult renames the id of the chat in a result.
func legacyResult(body []byte) []byte {
	v := strictjson.Value(body)
	chat := v.Get("chat")
	if !chat.IsObject() {
		return body
	}
	w := writer{b: make([]byte, 0, len(body)+8)}
	w.open()
	w.text("type", "chat")
	w.key("chat")
	w.b = append(w.b, rename(chat, "chatId", "streamId")...)
	w.close()
	return w.b
}

func chatIDName(legacy bool) string {
	if legacy {
		return "streamId"
	}
	return "chatId"
}

// legacyScopes reads the scopes of the older dialect as ours.
func legacyScopes(scopes []string) []string {
	out := make([]string, len(scopes))
	for i, s := range scopes {
		if rest, ok := strings.CutPrefix(s, "arc.stream."); ok {
			s = "arc.chat." + rest
		}
		out[i] = s
	}
	return out
}
