// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

// Command accp decodes, encodes, explains and measures the frames of ACCP. Each verb has its own
// help: accp decode -h.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"strings"

	"github.com/fivewire/fivewire/accp"
	"github.com/fivewire/fivewire/internal/command"
)

func main() { program.Main() }

var program = &command.Command{
	Name:    "accp",
	Summary: "Works with the frames of ACCP, one a line.",
	Verbs: []command.Verb{
		{
			Name: "decode", Arguments: "[flags] [FILE]", Prepare: prepareDecode,
			Summary:  "Writes frames as JSON: from, intent, op, payload and meta.",
			Examples: "accp decode frames.txt\naccp decode -lenient <frames.txt",
		},
		{
			Name: "encode", Arguments: "[flags] [FILE]", Prepare: prepareEncode,
			Summary:  "Writes frames for lines of JSON, the output of accp decode.",
			Examples: "accp decode frames.txt | accp encode",
		},
		{
			Name: "explain", Arguments: "[flags] [FILE]", Prepare: prepareExplain,
			Summary:  "Describes frames: sender, intent, params with their types, tokens and their limits; or what is wrong.",
			Examples: "accp explain frames.txt",
		},
		{
			Name: "count", Arguments: "[flags] [FILE]", Prepare: prepareCount,
			Summary: "Counts the tokens of frames by the estimate that all peers share (ApproxCounter); the package accp/tokenizer has the" +
				" exact numbers of a model.",
			Examples: "accp count frames.txt\naccp count -o json frames.txt",
		},
	},
}

// codecFlags declares the flags of a codec.
func codecFlags(fs *flag.FlagSet) *accp.Codec {
	c := &accp.Codec{}
	fs.BoolVar(&c.Lenient, "lenient", false, "accept the deviations from the grammar in the examples of the draft")
	fs.BoolVar(&c.Portable, "portable", false, "write for peers that support only the grammar of the draft")
	fs.BoolVar(&c.WriteLongKeys, "long-keys", false, "write keys unabbreviated")
	fs.BoolVar(&c.KeepDefaults, "keep-defaults", false, "write values that equal the default of their schema, and fill none in")
	return c
}

// eachLine calls f for each line of the file that the only argument names. All lines are
// processed; the error names those that failed.
func eachLine(ctx context.Context, s *command.IO, args []string, f func(line string) error) error {
	file, err := command.One(args, "", true)
	if err != nil {
		return err
	}
	data, err := s.Read(ctx, file)
	if err != nil {
		return err
	}
	var failures []error
	n := 0
	for line := range strings.Lines(string(data)) {
		n++
		if line = strings.TrimRight(line, "\r\n"); line == "" {
			continue
		}
		if err := f(line); err != nil {
			failures = append(failures, fmt.Errorf("line %d: %w", n, err))
		}
	}
	return errors.Join(failures...)
}

func prepareDecode(fs *flag.FlagSet) func(context.Context, *command.IO, []string) error {
	codec := codecFlags(fs)
	return func(ctx context.Context, s *command.IO, args []string) error {
		return eachLine(ctx, s, args, func(line string) error {
			m, err := codec.Decode([]byte(line))
			if err != nil {
				return err
			}
			text, err := m.MarshalJSON()
			if err != nil {
				return err
			}
			return s.Print(string(text), json.RawMessage(text))
		})
	}
}

func prepareEncode(fs *flag.FlagSet) func(context.Context, *command.IO, []string) error {
	codec := codecFlags(fs)
	return func(ctx context.Context, s *command.IO, args []string) error {
		return eachLine(ctx, s, args, func(line string) error {
			var m accp.Message
			if err := m.UnmarshalJSON([]byte(line)); err != nil {
				return err
			}
			frame, err := codec.Append(nil, &m)
			if err != nil {
				return err
			}
			return s.Print(string(frame), struct {
				Frame string `json:"frame"`
			}{string(frame)})
		})
	}
}

func prepareExplain(fs *flag.FlagSet) func(context.Context, *command.IO, []string) error {
	codec := codecFlags(fs)
	return func(ctx context.Context, s *command.IO, args []string) error {
		return eachLine(ctx, s, args, func(line string) error {
			text := strings.TrimSuffix(codec.Explain([]byte(line)), "\n")
			err := s.Print(text, struct {
				Frame string `json:"frame"`
				Text  string `json:"text"`
			}{line, text})
			_, invalid := codec.Decode([]byte(line))
			return errors.Join(err, invalid)
		})
	}
}

func prepareCount(*flag.FlagSet) func(context.Context, *command.IO, []string) error {
	return func(ctx context.Context, s *command.IO, args []string) error {
		return eachLine(ctx, s, args, func(line string) error {
			b, err := accp.MeasureFrame([]byte(line), accp.ApproxCounter{})
			if err != nil {
				return err
			}
			text := fmt.Sprintf("%d tokens: header %d, body %d, metadata %d", b.Total, b.Header, b.Body, b.Metadata)
			if len(b.Soft) > 0 {
				text += "; over the soft limit: " + strings.Join(b.Soft, ", ")
			}
			if len(b.Hard) > 0 {
				text += "; over the hard limit: " + strings.Join(b.Hard, ", ")
			}
			return s.Print(text, struct {
				Total    int      `json:"total"`
				Header   int      `json:"header"`
				Body     int      `json:"body"`
				Metadata int      `json:"metadata"`
				Soft     []string `json:"soft,omitempty"`
				Hard     []string `json:"hard,omitempty"`
				Counter  string   `json:"counter"`
			}{b.Total, b.Header, b.Body, b.Metadata, b.Soft, b.Hard, "ApproxCounter"})
		})
	}
}
