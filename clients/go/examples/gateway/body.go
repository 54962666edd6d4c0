package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
)

// object is a JSON object as it was sent. It knows where the values of its members stand, so that one can be replaced and
// every other byte stays as it was.
type object struct {
	body   []byte
	values map[string]span
}

type span struct{ from, to int }

var errNoObject = errors.New("the request is no JSON object")

// members reads the object. A name that stands there twice is refused: two readers might choose differently.
func members(body []byte) (object, error) {
	o := object{body, map[string]span{}}
	decoder := json.NewDecoder(bytes.NewReader(body))
	if first, err := decoder.Token(); err != nil || first != json.Delim('{') {
		return o, errNoObject
	}
	for decoder.More() {
		token, err := decoder.Token()
		if err != nil {
			return o, errNoObject
		}
		name := token.(string)
		if _, twice := o.values[name]; twice {
			return o, fmt.Errorf("the member %q stands there twice", name)
		}
		var value json.RawMessage
		if err := decoder.Decode(&value); err != nil {
			return o, errNoObject
		}
		end := int(decoder.InputOffset())
		o.values[name] = span{end - len(value), end}
	}
	if _, err := decoder.Token(); err != nil {
		return o, errNoObject
	}
	if _, err := decoder.Token(); err != io.EOF {
		return o, errNoObject
	}
	return o, nil
}

// text is the value of a member; empty when it is no string.
func (o object) text(name string) string {
	var text string
	if at, found := o.values[name]; found && json.Unmarshal(o.body[at.from:at.to], &text) != nil {
		return ""
	}
	return text
}

// with is the object with other values for these members, and no other byte changed.
func (o object) with(changed map[string]string) []byte {
	body := bytes.Clone(o.body)
	byPlace := slices.SortedFunc(maps.Keys(changed), func(a, b string) int { return o.values[b].from - o.values[a].from })
	for _, name := range byPlace { // from the last to the first, so that places stay true
		value, err := json.Marshal(changed[name])
		if err != nil {
			panic(err) // a string always encodes
		}
		at, found := o.values[name]
		if !found {
			start := bytes.IndexByte(body, '{') + 1
			at, value = span{start, start}, fmt.Appendf(nil, "%q: %s, ", name, value)
		}
		body = slices.Concat(body[:at.from], value, body[at.to:])
	}
	return body
}
