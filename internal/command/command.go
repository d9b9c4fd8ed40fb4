// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

// Package command is the frame of the commands of this module: verbs with flags, output as
// text or JSON, help with examples, secrets from files or the environment, and the exit
// statuses.
package command

import (
	"bufio"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"github.com/fivewire/fivewire/internal/guard"
	"github.com/fivewire/fivewire/internal/netguard"
)

// The exit statuses.
const (
	Done    = 0
	Failed  = 1 // refused or failed
	NotDone = 2 // could not run
)

// MaxInput bounds a file or standard input, in bytes.
const MaxInput = 16 << 20

// A Command is a program with verbs.
type Command struct {
	Name    string
	Summary string // a sentence or more
	Verbs   []Verb
}

// A Verb is a part of a [Command].
type Verb struct {
	Name      string
	Arguments string // of the usage line, such as "[flags] URL"
	Summary   string // a sentence, starting with a capital
	Examples  string // command lines, one a line

	// Prepare declares the flags and returns the function that runs after they are parsed. An error
	// is a failure with status [Failed], unless it comes from [Usage] or [CouldNot]. A flag "timeout" is
	// a duration, and a value of 0 or less is refused.
	Prepare func(fs *flag.FlagSet) func(ctx context.Context, io *IO, args []string) error
}

// An IO is what a verb reads and writes.
type IO struct {
	In       io.Reader
	Out, Err io.Writer

	Groups Groups // of commands that a verb starts

	json bool
}

// Main runs the command of this process until it ends, and exits. An interrupt ends the context of the
// verb, and a second one the process.
func (c *Command) Main() {
	s := &IO{In: os.Stdin, Out: os.Stdout, Err: os.Stderr}
	ctx, cancel := context.WithCancel(context.Background())
	s.Groups.OnInterrupt(cancel)
	os.Exit(c.Run(ctx, os.Args[1:], s))
}

// Run runs the verb that the first argument names, and returns the exit status.
func (c *Command) Run(ctx context.Context, args []string, s *IO) int {
	if len(args) == 0 {
		c.usage(s.Err)
		return NotDone
	}
	switch args[0] {
	case "-h", "-help", "--help", "help":
		c.usage(s.Out)
		return Done
	}
	for _, v := range c.Verbs {
		if v.Name == args[0] {
			return c.run(ctx, &v, args[1:], s)
		}
	}
	fmt.Fprintf(s.Err, "%s: unknown verb %q\n", c.Name, args[0])
	c.usage(s.Err)
	return NotDone
}

func (c *Command) run(ctx context.Context, v *Verb, args []string, s *IO) int {
	fs := flag.NewFlagSet(c.Name+" "+v.Name, flag.ContinueOnError)
	fs.SetOutput(io.Discard)
	output := fs.String("o", "text", "write `text` or json")
	run := v.Prepare(fs)
	err := fs.Parse(args)
	if errors.Is(err, flag.ErrHelp) {
		c.help(s.Out, v, fs)
		return Done
	}
	if err == nil && *output != "text" && *output != "json" {
		err = fmt.Errorf("-o %s: want text or json", *output)
	}
	if f := fs.Lookup("timeout"); err == nil && f != nil && f.Value.(flag.Getter).Get().(time.Duration) <= 0 {
		err = errors.New("-timeout: want more than 0")
	}
	if err != nil {
		fmt.Fprintf(s.Err, "%s %s: %v\n", c.Name, v.Name, err)
		c.help(s.Err, v, fs)
		return NotDone
	}
	s.json = *output == "json"
	err = explain(run(ctx, s, fs.Args()), fs)
	var status *statusError
	switch {
	case err == nil:
		return Done
	case errors.As(err, &status) && status.usage:
		fmt.Fprintf(s.Err, "%s %s: %v\nUsage: %s %s %s\n", c.Name, v.Name, err, c.Name, v.Name, v.Arguments)
		return NotDone
	}
	fmt.Fprintf(s.Err, "%s %s: %v\n", c.Name, v.Name, err)
	if status != nil {
		return NotDone
	}
	return Failed
}

// explain adds to the refusal of an address the flag that permits it.
func explain(err error, fs *flag.FlagSet) error {
	refused, ok := errors.AsType[*netguard.Error](err)
	if !ok {
		return err
	}
	isOff := func(name string) bool {
		f := fs.Lookup(name)
		return f != nil && f.Value.String() == "false"
	}
	switch refused.Reason {
	case netguard.ReasonScheme:
		if isOff("allow-insecure") {
			return fmt.Errorf("%w; -allow-insecure permits plain http and ws", err)
		}
		return fmt.Errorf("%w; want https or wss", err)
	case netguard.ReasonAddress, netguard.ReasonHost:
		if isOff("allow-local") {
			return fmt.Errorf("%w; -allow-local permits loopback and private addresses", err)
		}
	}
	return err
}

func (c *Command) usage(w io.Writer) {
	fmt.Fprintf(w, "%s\n\nUsage:\n", c.Summary)
	width := 0
	for _, v := range c.Verbs {
		width = max(width, len(v.Name))
	}
	for _, v := range c.Verbs {
		fmt.Fprintf(w, "  %s %-*s  %s\n", c.Name, width, v.Name, v.Summary)
	}
	fmt.Fprintf(w, "\n%s VERB -h lists the flags of a verb. The exit status is 0 if it is done, 1 if it was\nrefused or failed, and 2 if it could not run.\n", c.Name)
}

func (c *Command) help(w io.Writer, v *Verb, fs *flag.FlagSet) {
	fmt.Fprintf(w, "Usage: %s %s %s\n\n%s\n\nFlags:\n", c.Name, v.Name, v.Arguments, v.Summary)
	fs.SetOutput(w)
	fs.PrintDefaults()
	fs.SetOutput(io.Discard)
	if v.Examples != "" {
		fmt.Fprintf(w, "\nExamples:\n  %s\n", strings.ReplaceAll(v.Examples, "\n", "\n  "))
	}
}

// A statusError ends the command with status NotDone.
type statusError struct {
	error
	usage bool
}

func (e *statusError) Unwrap() error { return e.error }

// Usage returns the error of arguments that are wrong.
func Usage(format string, args ...any) error {
	return &statusError{error: fmt.Errorf(format, args...), usage: true}
}

// CouldNot marks an error as one because of which the command could not run; nil stays nil.
func CouldNot(err error) error {
	if err == nil {
		return nil
	}
	return &statusError{error: err}
}

// Print writes text and a line feed, or with -o json v as one line of JSON.
func (s *IO) Print(text string, v any) error {
	if !s.json {
		_, err := fmt.Fprintln(s.Out, text)
		return CouldNot(err)
	}
	line, err := guard.Encode(v)
	if err != nil {
		return CouldNot(err)
	}
	_, err = s.Out.Write(append(line, '\n'))
	return CouldNot(err)
}

// Piece writes a part of a text that End completes, or with -o json nothing.
func (s *IO) Piece(text string) error {
	if s.json {
		return nil
	}
	_, err := io.WriteString(s.Out, text)
	return CouldNot(err)
}

// End writes a line feed after pieces, or with -o json v as one line of JSON.
func (s *IO) End(v any) error { return s.Print("", v) }

// Read returns the content of a file, or of standard input if the name is "-" or empty. The end of ctx
// ends it, although the input does not end.
func (s *IO) Read(ctx context.Context, name string) ([]byte, error) {
	type result struct {
		b   []byte
		err error
	}
	done := make(chan result, 1)
	go func() {
		b, err := s.readAll(name)
		done <- result{b, err}
	}()
	select {
	case r := <-done:
		return r.b, CouldNot(r.err)
	case <-ctx.Done():
		return nil, CouldNot(ctx.Err())
	}
}

func (s *IO) readAll(name string) ([]byte, error) {
	r := s.In
	if name != "" && name != "-" {
		f, err := os.Open(name)
		if err != nil {
			return nil, err
		}
		defer f.Close()
		r = f
	}
	b, err := io.ReadAll(io.LimitReader(r, MaxInput+1))
	if err == nil && len(b) > MaxInput {
		err = fmt.Errorf("the input has more than %d bytes", MaxInput)
	}
	return b, err
}

// Lines calls f for each line of standard input that is not empty, until f fails or ctx ends.
func (s *IO) Lines(ctx context.Context, f func(line string) error) error {
	lines, failed := make(chan string), make(chan error, 1)
	go func() {
		scan := bufio.NewScanner(s.In)
		scan.Buffer(nil, MaxInput)
		for scan.Scan() {
			select {
			case lines <- scan.Text():
			case <-ctx.Done():
				return
			}
		}
		failed <- scan.Err()
	}()
	for {
		select {
		case <-ctx.Done():
			return nil
		case err := <-failed:
			return CouldNot(err)
		case line := <-lines:
			if strings.TrimSpace(line) == "" {
				continue
			}
			if err := f(line); err != nil {
				return err
			}
		}
	}
}

// One returns the only argument, or "" if there is none and it may be absent.
func One(args []string, name string, isOptional bool) (string, error) {
	switch {
	case len(args) == 1:
		return args[0], nil
	case len(args) == 0 && isOptional:
		return "", nil
	case len(args) == 0:
		return "", Usage("%s is missing", name)
	}
	return "", Usage("%q: one argument too many", args[1])
}

// Secret returns the content of a file without the line feed at its end, or without a name the value
// of a variable of the environment. A secret is never an argument, which every user of a machine can read.
func Secret(file, variable string) (string, error) {
	if file == "" {
		return os.Getenv(variable), nil
	}
	b, err := os.ReadFile(file)
	if err != nil {
		return "", CouldNot(err)
	}
	secret := strings.TrimRight(string(b), "\r\n")
	if secret == "" {
		return "", CouldNot(fmt.Errorf("%s is empty", file))
	}
	return secret, nil
}
