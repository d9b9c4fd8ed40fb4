// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package a2abridge

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"

	"github.com/a2aproject/a2a-go/v2/a2a"

	"github.com/fivewire/fivewire/arc"
)

// errorOf returns the A2A error of an error of a watched task.
func errorOf(method string, err error) error {
	if _, ok := errors.AsType[*arc.Error](err); ok || errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
		return refusalOf(method, err)
	}
	return a2a.NewError(a2a.ErrInternalError, "the stream of the task ended")
}

// refusalOf returns the A2A error of an *arc.Error. It returns another error unchanged.
func refusalOf(method string, err error) error {
	e, ok := errors.AsType[*arc.Error](err)
	if !ok {
		return err
	}
	kind := a2a.ErrServerError
	switch e.Code {
	case arc.ErrTaskNotFound:
		kind = a2a.ErrTaskNotFound
	case arc.ErrTaskAlreadyCompleted, arc.ErrTaskAlreadyCanceled, arc.ErrInvalidTaskTransition:
		kind = a2a.ErrUnsupportedOperation
		if method == arc.MethodTaskCancel {
			kind = a2a.ErrTaskNotCancelable
		}
	case arc.ErrAuthenticationFailed, arc.ErrTokenExpired, arc.ErrTokenInvalid:
		kind = a2a.ErrUnauthenticated
	case arc.ErrInsufficientScope, arc.ErrPermissionDenied, arc.ErrAuthorizationFailed, arc.ErrAgentAuthenticationFailed:
		kind = a2a.ErrUnauthorized
	case arc.ErrInvalidParams, arc.ErrMissingField, arc.ErrInvalidFieldFormat, arc.ErrInvalidTrace, arc.ErrMessageTooLarge:
		kind = a2a.ErrInvalidParams
	case arc.ErrMethodNotFound:
		kind = a2a.ErrUnsupportedOperation
		if method == arc.MethodTaskSubscribe {
			kind = a2a.ErrPushNotificationNotSupported
		}
	case arc.ErrInternal:
		kind = a2a.ErrInternalError
	}
	message := cmp.Or(e.Message, e.Code.Message())
	var details struct{ Field, Issue string }
	if json.Unmarshal(e.Details, &details) == nil && details.Issue != "" {
		message += ": " + details.Field + ": " + details.Issue
	}
	return a2a.NewError(kind, message)
}
