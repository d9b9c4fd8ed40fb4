// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package fivewire_test

import (
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"reflect"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/fivewire/fivewire/a2e"
	"github.com/fivewire/fivewire/accp"
	"github.com/fivewire/fivewire/air"
	"github.com/fivewire/fivewire/air/relay"
	"github.com/fivewire/fivewire/altar"
	"github.com/fivewire/fivewire/arc"
)

// A debuggable is a server of any package.
type debuggable interface {
	io.Closer
	DebugHandler() http.Handler
}

// Each server shows the same page: the state, and a table of resources and bounds.
func TestDebugHandlersShowStateAndUsage(t *testing.T) {
	id, err := air.GenerateIdentity("did:air:AIR-0000-0000-0001")
	require.NoError(t, err)
	handle := air.HandlerFunc(func(context.Context, *air.Delivery) error { return nil })
	for name, create := range map[string]func() (debuggable, error){
		"arc": func() (debuggable, error) {
			return arc.NewServer(&arc.ServerOptions{Auth: arc.Auth{AllowAnonymous: true}})
		},
		"a2e": func() (debuggable, error) {
			return a2e.NewHost(&a2e.HostOptions{Auth: a2e.Auth{AllowAnonymous: true}})
		},
		"altar: desk": func() (debuggable, error) {
			auth := altar.Auth{AllowAnonymous: true, Authorizer: altar.AuthorizerFunc(altar.AllowAll)}
			return altar.NewHost(&altar.Manifest{}, &altar.HostOptions{ID: "desk", Auth: auth})
		},
		"accp": func() (debuggable, error) {
			return accp.NewServer("desk", &accp.ServerOptions{Auth: accp.Auth{AllowAnonymous: true}})
		},
		"air": func() (debuggable, error) { return air.NewInbox(id, handle, nil) },
		"air: relay": func() (debuggable, error) {
			return relay.NewServer(&relay.ServerOptions{AnyRecipient: true, Auth: relay.Auth{AllowAnonymous: true}})
		},
	} {
		t.Run(name, func(t *testing.T) {
			srv, err := create()
			require.NoError(t, err)
			status, text := debugPage(srv)
			require.Equal(t, http.StatusOK, status)
			require.True(t, strings.HasPrefix(text, name), text)
			for _, resource := range []string{"memory", "items", "all", "principal"} {
				require.Contains(t, text, resource)
			}
			table := reflect.ValueOf(srv).MethodByName("Usage").Call(nil)[0] // each package has its own type of rows
			for i := range table.Len() {
				require.Contains(t, text, table.Index(i).FieldByName("Resource").String(), "the table of Usage is complete")
			}
			require.NoError(t, srv.Close())
			status, _ = debugPage(srv)
			require.Equal(t, http.StatusServiceUnavailable, status, "after Close")
		})
	}
}

func debugPage(srv debuggable) (status int, text string) {
	rec := httptest.NewRecorder()
	srv.DebugHandler().ServeHTTP(rec, httptest.NewRequest(http.MethodGet, "/", nil))
	return rec.Code, rec.Body.String()
}

// Each server refuses an allowed origin that no browser can send.
func TestServersRefuseOddOrigins(t *testing.T) {
	id, err := air.GenerateIdentity("did:air:AIR-0000-0000-0001")
	require.NoError(t, err)
	host, err := a2e.NewHost(&a2e.HostOptions{Auth: a2e.Auth{AllowAnonymous: true}})
	require.NoError(t, err)
	defer host.Close()
	odd := []string{"*", "app.example"}
	handle := air.HandlerFunc(func(context.Context, *air.Delivery) error { return nil })
	for name, create := range map[string]func() (any, error){
		"arc": func() (any, error) {
			return arc.NewServer(&arc.ServerOptions{Auth: arc.Auth{AllowAnonymous: true}, AllowedOrigins: odd})
		},
		"a2e over HTTP":      func() (any, error) { return a2e.NewHTTPHandler(host, &a2e.HTTPHandlerOptions{AllowedOrigins: odd}) },
		"a2e over WebSocket": func() (any, error) { return a2e.NewWebSocketHandler(host, &a2e.WebSocketOptions{AllowedOrigins: odd}) },
		"altar": func() (any, error) {
			auth := altar.Auth{AllowAnonymous: true, Authorizer: altar.AuthorizerFunc(altar.AllowAll)}
			return altar.NewHost(&altar.Manifest{}, &altar.HostOptions{Auth: auth, AllowedOrigins: odd})
		},
		"accp": func() (any, error) {
			return accp.NewServer("desk", &accp.ServerOptions{Auth: accp.Auth{AllowAnonymous: true}, AllowedOrigins: odd})
		},
		"air": func() (any, error) { return air.NewInbox(id, handle, &air.InboxOptions{AllowedOrigins: odd}) },
		"air relay": func() (any, error) {
			return relay.NewServer(&relay.ServerOptions{AnyRecipient: true, Auth: relay.Auth{AllowAnonymous: true}, AllowedOrigins: odd})
		},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := create()
			require.ErrorContains(t, err, `"app.example" is not an origin`)
		})
	}
}
