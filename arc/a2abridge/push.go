// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package a2abridge

import (
	"cmp"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"

	"github.com/a2aproject/a2a-go/v2/a2a"

	"github.com/fivewire/fivewire/arc"
	"github.com/fivewire/fivewire/arc/internal/front"
)

// pushDialect is the form of notifications for A2A clients.
const pushDialect = "a2a"

// The header fields of a notification with the token of its configuration: that of the specification and that of the SDK.
const (
	tokenHeader    = "X-A2A-Notification-Token"
	sdkTokenHeader = "A2A-Notification-Token"
)

// maxPushData bounds the token and the credentials of a configuration.
const maxPushData = 8 << 10

// pushData is what a configuration has besides a subscription.
type pushData struct {
	Token string            `json:"token,omitempty"`
	Auth  *a2a.PushAuthInfo `json:"auth,omitempty"`
}

// webhookOf returns the webhook of a configuration.
func webhookOf(c *a2a.PushConfig) (*front.Webhook, error) {
	auth := cmp.Or(c.Auth, &a2a.PushAuthInfo{})
	for _, text := range []string{c.Token, auth.Scheme, auth.Credentials} {
		if strings.ContainsFunc(text, func(r rune) bool { return r < ' ' || r > '~' }) {
			return nil, fmt.Errorf("%w: the token and the authentication of a push configuration must be printable ASCII", a2a.ErrInvalidParams)
		}
	}
	data, err := json.Marshal(pushData{c.Token, c.Auth})
	if err != nil || len(data) > maxPushData {
		return nil, fmt.Errorf("%w: the token or the authentication of the push configuration is too long", a2a.ErrInvalidParams)
	}
	return &front.Webhook{ID: c.ID, CallbackURL: c.URL, Dialect: pushDialect, Data: data}, nil
}

// configOf returns the configuration of a webhook.
func configOf(taskID a2a.TaskID, w *front.Webhook) *a2a.PushConfig {
	var data pushData
	_ = json.Unmarshal(w.Data, &data) // written by this package
	return &a2a.PushConfig{TaskID: taskID, ID: w.ID, URL: w.CallbackURL, Token: data.Token, Auth: data.Auth}
}

// encodePush returns the request for a notification.
func encodePush(notification any, traceID string, data json.RawMessage) ([]byte, http.Header, error) {
	event := eventOf(notification.(*arc.Notification), traceID)
	if event == nil {
		return nil, nil, nil
	}
	body, err := json.Marshal(a2a.StreamResponse{Event: event})
	if err != nil {
		return nil, nil, err
	}
	config := configOf("", &front.Webhook{Data: data})
	h := http.Header{"Content-Type": {"application/json"}}
	if config.Token != "" {
		h.Set(tokenHeader, config.Token)
		h.Set(sdkTokenHeader, config.Token)
	}
	if config.Auth != nil && config.Auth.Credentials != "" {
		h.Set("Authorization", config.Auth.Scheme+" "+config.Auth.Credentials)
	}
	return body, h, nil
}

// eventOf returns the event of a notification, or nil if it is about a message of the caller.
func eventOf(n *arc.Notification, traceID string) a2a.Event {
	info := a2a.TaskInfo{TaskID: a2a.TaskID(n.TaskID), ContextID: cmp.Or(traceID, n.TaskID)}
	t := &arc.Task{ID: n.TaskID, Status: arc.TaskStatus(n.Data.Status), Reason: n.Data.Reason, UpdatedAt: n.Timestamp}
	switch n.Event {
	case arc.EventNewArtifact:
		return &a2a.TaskArtifactUpdateEvent{TaskID: info.TaskID, ContextID: info.ContextID, Artifact: fromArtifact(n.Data.Artifact), LastChunk: true}
	case arc.EventNewMessage:
		if n.Data.MessageContent == nil || n.Data.MessageContent.Role != arc.RoleAgent {
			return nil
		}
	case arc.EventTaskPaused:
		t.Reason = n.Data.RequiredInput
	case arc.EventTaskFailed:
		var failure struct {
			Message string          `json:"message"`
			Details json.RawMessage `json:"details"`
		}
		_ = json.Unmarshal(n.Data.Error, &failure) // written by package arc
		t.Reason, t.Error = failure.Message, &arc.Error{Details: failure.Details}
	}
	v := &view{info: info, task: &a2a.Task{}}
	status := v.status(t)
	if m := n.Data.MessageContent; m != nil {
		status.Message = fromMessage(m, info, 0)
	}
	if status.Message != nil {
		status.Message.ID = cmp.Or(messageID(n.Data.MessageContent), n.TaskID+"-"+string(n.Timestamp))
	}
	return v.update(status)
}

func messageID(m *arc.Message) string {
	if m == nil {
		return ""
	}
	return decodeExtras(m.Extra).MessageID
}

// pushID returns the id of the configuration of a message that has none; it is the same for a repeated message.
func pushID(messageID string) string {
	sum := sha256.Sum256([]byte(messageID))
	return "push-" + base64.RawURLEncoding.EncodeToString(sum[:12])
}

// CreateTaskPushConfig implements a2asrv.RequestHandler. The configuration is a subscription of the arc.Server, whose
// addresses, signatures and repetitions are those of its webhooks. One with the id of another replaces that.
func (s *Server) CreateTaskPushConfig(ctx context.Context, config *a2a.PushConfig) (*a2a.PushConfig, error) {
	c := *config
	c.ID = cmp.Or(c.ID, "push-"+strings.ToLower(rand.Text()))
	return s.subscribe(ctx, &c)
}

func (s *Server) subscribe(ctx context.Context, c *a2a.PushConfig) (*a2a.PushConfig, error) {
	w, err := webhookOf(c)
	if err != nil {
		return nil, err
	}
	_, err = s.result(ctx, call{method: arc.MethodTaskSubscribe, tenant: c.Tenant, push: w,
		params: &arc.SubscribeParams{TaskID: string(c.TaskID), CallbackURL: c.URL}})
	if err != nil {
		return nil, refusalOf(arc.MethodTaskSubscribe, err)
	}
	out := configOf(c.TaskID, w)
	out.Tenant = c.Tenant
	return out, nil
}

// pushConfigs returns the configurations of a task, in the order of their ids.
func (s *Server) pushConfigs(ctx context.Context, tenant string, id a2a.TaskID) (list []*a2a.PushConfig, err error) {
	in, err := s.request(ctx, infoCall(tenant, id))
	if err != nil {
		return nil, err
	}
	webhooks, err := front.Webhooks(ctx, s.engine, in, pushDialect)
	if err != nil {
		return nil, errorOf(arc.MethodTaskInfo, err)
	}
	list = []*a2a.PushConfig{}
	for i := range webhooks {
		c := configOf(id, &webhooks[i])
		c.Tenant = tenant
		list = append(list, c)
	}
	slices.SortFunc(list, func(a, b *a2a.PushConfig) int { return strings.Compare(a.ID, b.ID) })
	return list, nil
}

// GetTaskPushConfig implements a2asrv.RequestHandler.
func (s *Server) GetTaskPushConfig(ctx context.Context, req *a2a.GetTaskPushConfigRequest) (*a2a.PushConfig, error) {
	list, err := s.pushConfigs(ctx, req.Tenant, req.TaskID)
	if err != nil {
		return nil, err
	}
	i := slices.IndexFunc(list, func(c *a2a.PushConfig) bool { return c.ID == req.ID })
	if i < 0 {
		return nil, fmt.Errorf("%w: the task has no such push configuration", a2a.ErrTaskNotFound)
	}
	return list[i], nil
}

// ListTaskPushConfigs implements a2asrv.RequestHandler.
func (s *Server) ListTaskPushConfigs(ctx context.Context, req *a2a.ListTaskPushConfigRequest) (*a2a.ListTaskPushConfigResponse, error) {
	size := cmp.Or(req.PageSize, maxPage)
	if size < 1 {
		return nil, fmt.Errorf("%w: the page size must be positive", a2a.ErrInvalidParams)
	}
	after, err := decodeToken(req.PageToken)
	if err != nil {
		return nil, err
	}
	list, err := s.pushConfigs(ctx, req.Tenant, req.TaskID)
	if err != nil {
		return nil, err
	}
	list = slices.DeleteFunc(list, func(c *a2a.PushConfig) bool { return after != "" && c.ID <= after })
	out := &a2a.ListTaskPushConfigResponse{Configs: list[:min(size, len(list))]}
	if size < len(list) {
		out.NextPageToken = base64.RawURLEncoding.EncodeToString([]byte(list[size-1].ID))
	}
	return out, nil
}

// DeleteTaskPushConfig implements a2asrv.RequestHandler. Waiting notifications are not sent.
func (s *Server) DeleteTaskPushConfig(ctx context.Context, req *a2a.DeleteTaskPushConfigRequest) error {
	in, err := s.request(ctx, infoCall(req.Tenant, req.TaskID))
	if err != nil {
		return err
	}
	return refusalOf(arc.MethodTaskInfo, front.Unsubscribe(ctx, s.engine, in, &front.Webhook{ID: req.ID, Dialect: pushDialect}))
}
