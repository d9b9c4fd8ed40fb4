// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package arc_test

import (
	"context"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/fivewire/fivewire/arc"
)

// ARC-160, ARC-161, ARC-162, ARC-166: the names of the scopes, and the six sets that
// section 8 gives to the usual agents, which are just enough for their methods.
func TestScopeSets(t *testing.T) {
	tasks := []string{arc.MethodTaskCreate, arc.MethodTaskSend, arc.MethodTaskInfo, arc.MethodTaskCancel, arc.MethodTaskSubscribe}
	chats := []string{arc.MethodChatStart, arc.MethodChatMessage, arc.MethodChatEnd}
	all := slices.Concat(tasks, chats, []string{arc.MethodTaskNotification})
	for set, allowed := range map[string][]string{
		"arc.task.controller arc.agent.caller":                     tasks,
		"arc.chat.controller arc.agent.caller":                     chats,
		"arc.task.controller arc.chat.controller arc.agent.caller": slices.Concat(tasks, chats),
		"arc.task.notify arc.agent.receiver":                       {arc.MethodTaskNotification},
		"arc.chat.controller arc.agent.receiver":                   nil, // it answers chats, and starts none
		"arc.task.notify arc.chat.controller arc.agent.receiver":   {arc.MethodTaskNotification},
	} {
		scopes := strings.Fields(set)
		for _, scope := range scopes {
			require.Regexp(t, `^arc\.(agent|task|chat)\.(caller|receiver|controller|notify)$`, scope)
		}
		for _, method := range all {
			require.Equal(t, slices.Contains(allowed, method), arc.HasScopes(method, scopes), "%s with %s", method, set)
		}
	}
}

// ARC-179: the pattern for agent ids is advice. Every id that the rules of ARC-D08
// allow is served.
func TestAgentIDs(t *testing.T) {
	srv := arc.MustServer(nil)
	defer srv.Close()
	ts := httptest.NewServer(srv)
	defer ts.Close()
	client, err := arc.NewClient(ts.URL+"/arc", "x", nil)
	require.NoError(t, err)
	defer client.Close()
	for _, id := range []string{"a", "finance-analyzer-01", "Агент № 7", "a/b?c=d#e", "<script>", strings.Repeat("x", 256)} {
		srv.Handle(id, "who.am_i", arc.HandlerFunc(func(_ context.Context, call *arc.Call) (any, error) {
			return map[string]string{"id": call.Agent}, nil
		}))
		res, err := client.Call(t.Context(), id, "who.am_i", nil, nil)
		require.NoError(t, err, id)
		require.Equal(t, id, res.ResponseAgent)
	}
	for _, id := range []string{"", "a\nb", "a\x7fb", strings.Repeat("x", 257)} {
		_, err := client.Call(t.Context(), id, "who.am_i", nil, nil)
		require.ErrorIs(t, err, arc.ErrInvalidAgentID)
	}
}
