// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/fivewire/fivewire/altar/llm"
)

// Each vendor's model has its calls made, one of them refused and repaired, with the exact number of the account.
func TestConversation(t *testing.T) {
	for name, v := range vendors {
		t.Run(name, func(t *testing.T) {
			var got []transfer
			b, err := newToolbox(t.Context(), v.format, tools{onTransfer: func(_ context.Context, in transfer) error {
				got = append(got, in)
				return nil
			}})
			require.NoError(t, err)
			defer b.close()
			model := newRecording(v.format, script)
			defer model.Close()
			answer, err := v.ask(t.Context(), model.URL, "key", b, question)
			require.NoError(t, err)
			require.Equal(t, "Done.", answer)
			require.Equal(t, []transfer{{9007199254740993, 1250}}, got)

			require.Len(t, model.requests, 3)
			require.Contains(t, model.requests[0], `"account":{`)
			require.Contains(t, model.requests[0], `number of the account (integer)`)
			require.Contains(t, model.requests[0], question)
			refusal, end := model.requests[1], model.requests[2]
			require.Contains(t, refusal, "/cents wrong_type (expected integer, got string); /memo unknown_parameter")
			require.Contains(t, refusal, "call-0-1", "both calls of a turn have a result")
			require.Contains(t, end, "1250 cents to 9007199254740993")
			if v.format == llm.Anthropic {
				require.Contains(t, refusal, `"is_error":true`)
			}
		})
	}
}

// The calls of a turn run at the same time.
func TestCallsOfATurnAreParallel(t *testing.T) {
	for name, v := range vendors {
		t.Run(name, func(t *testing.T) {
			started, proceed := make(chan struct{}, 2), make(chan struct{})
			b, err := newToolbox(t.Context(), v.format, tools{onTransfer: func(context.Context, transfer) error {
				started <- struct{}{}
				<-proceed
				return nil
			}})
			require.NoError(t, err)
			defer b.close()
			call := recorded{"bank__transfer", `{"account":"1","cents":"1"}`}
			model := newRecording(v.format, [][]recorded{{call, call}})
			defer model.Close()
			done := make(chan error, 1)
			go func() {
				_, err := v.ask(t.Context(), model.URL, "key", b, question)
				done <- err
			}()
			for range 2 {
				select {
				case <-started:
				case err := <-done:
					t.Fatalf("the conversation ended: %v", err)
				case <-time.After(time.Minute):
					t.Fatal("one call at a time")
				}
			}
			close(proceed)
			require.NoError(t, <-done)
		})
	}
}

// The end of a conversation ends the tool that works for it.
func TestCancellationStopsTool(t *testing.T) {
	for name, v := range vendors {
		t.Run(name, func(t *testing.T) {
			ctx, cancel := context.WithCancel(t.Context())
			stopped := make(chan error, 1)
			b, err := newToolbox(t.Context(), v.format, tools{onTransfer: func(ctx context.Context, _ transfer) error {
				cancel()
				<-ctx.Done()
				stopped <- ctx.Err()
				return ctx.Err()
			}})
			require.NoError(t, err)
			defer b.close()
			model := newRecording(v.format, [][]recorded{{{"bank__transfer", `{"account":"1","cents":"1"}`}}})
			defer model.Close()
			_, err = v.ask(ctx, model.URL, "key", b, question)
			require.ErrorIs(t, err, context.Canceled)
			select {
			case err := <-stopped:
				require.ErrorIs(t, err, context.Canceled)
			case <-time.After(time.Minute):
				t.Fatal("the tool works on")
			}
		})
	}
}

// A number is exact as a number only where the SDK keeps its text: this is why the tools ask for digits.
func TestNumbersOfSDKs(t *testing.T) {
	for name, want := range map[string]int64{"openai": 9007199254740993, "anthropic": 9007199254740993, "google": 9007199254740992} {
		v := vendors[name]
		var got int64
		b, err := newToolbox(t.Context(), v.format, tools{onTransfer: func(_ context.Context, in transfer) error {
			got = in.Account
			return nil
		}})
		require.NoError(t, err)
		model := newRecording(v.format, [][]recorded{{{"bank__transfer", `{"account":9007199254740993,"cents":1}`}}})
		_, err = v.ask(t.Context(), model.URL, "key", b, question)
		require.NoError(t, err)
		require.Equal(t, want, got, name)
		model.Close()
		b.close()
	}
}

func TestRun(t *testing.T) {
	for name := range vendors {
		var out strings.Builder
		require.NoError(t, run(t.Context(), name, false, &out))
		require.Equal(t, 3, strings.Count(out.String(), "call: "))
		require.Contains(t, out.String(), "model: Done.\n")
	}
	require.ErrorContains(t, run(t.Context(), "none", false, io.Discard), "unknown vendor")
}
