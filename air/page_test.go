// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package air

import (
	"encoding/base64"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/fivewire/fivewire/internal/strictjson"
)

// An answer to a pull is read as a strict reader reads it, wherever that accepts it,
// and an envelope in it that is not strict keeps no other back.
func FuzzPage(f *testing.F) {
	f.Add([]byte(`{"envelopes":[{"id":"a"},{"id":"b","x":[1,{"y":"]}"}]}],"cursor":"c","has_more":true}`))
	f.Add([]byte(` {"cursor" : null , "envelopes" : [ ] , "has_more" : false } `))
	f.Add([]byte(`{"envelopes":[{"id":"a","id":"b"},7,"x",[[]]],"cursor":"\u00e9"}`))
	f.Add([]byte(`{"recipient_did":"d","messages":[{"seq":3,"envelope_id":"a","envelope_b64":"eyJpZCI6ImIifQ=="}],"cursor":3,"has_more":true}`))
	f.Add([]byte(`{"messages":[{"seq":-1,"envelope_b64":"%"}],"cursor":0}`))
	f.Fuzz(func(t *testing.T, text []byte) {
		v, err := strictjson.Check(text, strictjson.Options{})
		if p, perr := parsePage(text, false); perr == nil {
			for _, item := range p.items {
				require.NotEmpty(t, item.data)
			}
			if err == nil {
				var want []string
				for e := v.Get("envelopes").Elements(); e.Next(); {
					want = append(want, string(e.Value))
				}
				require.Len(t, p.items, len(want))
				for i, item := range p.items {
					require.Equal(t, want[i], string(item.data))
					id, _ := strictjson.Value(item.data).Get("id").Text()
					require.Equal(t, id, item.id)
				}
				cursor, _ := v.Get("cursor").Text()
				require.Equal(t, cursor, p.cursor)
				more, _ := v.Get("has_more").Bool()
				require.Equal(t, more, p.more)
			}
		} else if err == nil {
			require.False(t, v.Get("envelopes").IsArray() && (v.Get("cursor").Absent() || v.Get("cursor").Kind() == '"'))
		}
		p, perr := parsePage(text, true)
		if perr != nil || err != nil {
			return
		}
		i := 0
		for e := v.Get("messages").Elements(); e.Next(); i++ {
			coded, _ := e.Value.Get("envelope_b64").Text()
			data, err := base64.StdEncoding.DecodeString(coded)
			require.Equal(t, err == nil, p.items[i].data != nil)
			if err == nil {
				require.Equal(t, string(data), string(p.items[i].data))
			}
		}
		require.Len(t, p.items, i)
	})
}
