// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package core

// A chain is a list of elements that contain their links. The functions that its methods take return
// the link of an element in this chain.
type chain[T any] struct{ first, last *T }

// A link is the place of an element in a chain.
type link[T any] struct{ prev, next *T }

// push appends an element.
func (c *chain[T]) push(e *T, linkOf func(*T) *link[T]) {
	linkOf(e).prev = c.last
	if c.last != nil {
		linkOf(c.last).next = e
	} else {
		c.first = e
	}
	c.last = e
}

// remove removes an element.
func (c *chain[T]) remove(e *T, linkOf func(*T) *link[T]) {
	l := linkOf(e)
	if l.prev != nil {
		linkOf(l.prev).next = l.next
	} else {
		c.first = l.next
	}
	if l.next != nil {
		linkOf(l.next).prev = l.prev
	} else {
		c.last = l.prev
	}
	*l = link[T]{}
}
