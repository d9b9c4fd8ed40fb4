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

// ScriptedTask returns an agent whose tasks take the steps in order and then complete.
func ScriptedTask(steps ...Step) arc.TaskHandler {
	return arc.TaskHandlerFunc(func(ctx context.Context, run *arc.TaskRun) error {
		for _, step := range steps {
			if err := step(ctx, run); err != nil {
				return err
			}
		}
		return nil
	})
}

// AddMessage adds a text message of the agent.
func AddMessage(text string) Step {
	return func(ctx context.Context, run *arc.TaskRun) error { return run.AddMessage(ctx, arc.AgentText(text)) }
}

// AddArtifact adds an artifact with one text.
func AddArtifact(name, text string) Step {
	return func(ctx context.Context, run *arc.TaskRun) error {
		return run.AddArtifact(ctx, &arc.Artifact{Name: name, Parts: []arc.Part{arc.TextPart(text)}})
	}
}

// WaitInput waits for input.
func WaitInput(required string) Step {
	return func(ctx context.Context, run *arc.TaskRun) error {
		_, err := run.WaitInput(ctx, required)
		return err
	}
}

// Sleep lets time pass.
func Sleep(d time.Duration) Step {
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

// WaitCanceled waits until the task is canceled.
func WaitCanceled() Step {
	return func(ctx context.Context, _ *arc.TaskRun) error {
		<-ctx.Done()
		return context.Cause(ctx)
	}
}

// Fail fails the task.
func Fail(code arc.Code, message string) Step {
	return func(context.Context, *arc.TaskRun) error { return arc.Errorf(code, "%s", message) }
}

// ScriptedChat returns an agent that answers each message with the pieces, in order.
func ScriptedChat(pieces ...string) arc.ChatHandler {
	return arc.ChatHandlerFunc(func(_ context.Context, _ *arc.ChatTurn, out *arc.ChatWriter) error {
		for _, p := range pieces {
			if err := out.Send(p); err != nil {
				return err
			}
		}
		return nil
	})
}

// EchoChat returns an agent that answers each message with its text.
func EchoChat() arc.ChatHandler {
	return arc.ChatReplyFunc(func(_ context.Context, turn *arc.ChatTurn) (*arc.Message, error) {
		return arc.AgentText(turn.Message.Text()), nil
	})
}
