// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package arctest

import (
	"context"
	"time"

	"github.com/fivewire/fivewire/arc"
)

// A Step is one thing that a scripted task does. A step that fails ends the
// task with its error.
type Step func(ctx context.Context, run *arc.TaskRun) error

// Task returns an agent whose tasks take the steps in order and then complete.
func Task(steps ...Step) arc.TaskHandler {
	return arc.TaskFunc(func(ctx context.Context, run *arc.TaskRun) error {
		for _, step := range steps {
			if err := step(ctx, run); err != nil {
				return err
			}
		}
		return nil
	})
}

// Say adds a text message of the agent.
func Say(text string) Step {
	return func(ctx context.Context, run *arc.TaskRun) error { return run.AddMessage(ctx, arc.AgentText(text)) }
}

// Produce adds an artifact with one text.
func Produce(name, text string) Step {
	return func(ctx context.Context, run *arc.TaskRun) error {
		return run.AddArtifact(ctx, &arc.Artifact{Name: name, Parts: []arc.Part{arc.TextPart(text)}})
	}
}

// Ask waits for input.
func Ask(required string) Step {
	return func(ctx context.Context, run *arc.TaskRun) error {
		_, err := run.RequireInput(ctx, required)
		return err
	}
}

// Wait lets time pass.
func Wait(d time.Duration) Step {
	return func(ctx context.Context, _ *arc.TaskRun) error {
		timer := time.NewTimer(d)
		defer timer.Stop()
		select {
		case <-timer.C:
			return nil
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// Hang waits until the task is canceled.
func Hang() Step {
	return func(ctx context.Context, _ *arc.TaskRun) error {
		<-ctx.Done()
		return context.Cause(ctx)
	}
}

// Fail fails the task.
func Fail(code arc.Code, message string) Step {
	return func(context.Context, *arc.TaskRun) error { return arc.Errorf(code, "%s", message) }
}

// Chat returns an agent that answers each message with the pieces, in order.
func Chat(pieces ...string) arc.ChatHandler {
	return arc.ChatFunc(func(_ context.Context, _ *arc.ChatTurn, out *arc.ChatWriter) error {
		for _, p := range pieces {
			if err := out.Send(p); err != nil {
				return err
			}
		}
		return nil
	})
}

// Echo returns an agent that answers each message with its text.
func Echo() arc.ChatHandler {
	return arc.ReplyFunc(func(_ context.Context, turn *arc.ChatTurn) (*arc.Message, error) {
		return arc.AgentText(turn.Message.Text()), nil
	})
}
