package main

import "testing"

func TestWith(t *testing.T) {
	for body, want := range map[string]string{
		`{"model":"a"}`: `{"model":"b"}`,
		"{ \"x\" : [{\"model\":1}], \"m\\u006fdel\" :\t\"a\" , \"n\":1.0e2}\n": "{ \"x\" : [{\"model\":1}], \"m\\u006fdel\" :\t\"b\" , \"n\":1.0e2}\n",
		`{"x":"\"model\":\"a\"","model":null}`:                                 `{"x":"\"model\":\"a\"","model":"b"}`,
		`{"x":1}`:                                                              `{"model": "b", "x":1}`,
	} {
		fields, err := members([]byte(body))
		if err != nil {
			t.Fatalf("%s: %v", body, err)
		}
		if got := string(fields.with(map[string]string{"model": "b"})); got != want {
			t.Errorf("%s: %s", body, got)
		}
	}
}

func TestMembersRefuses(t *testing.T) {
	for _, body := range []string{``, `[]`, `{`, `{"a":1`, `{"a":1}x`, `{"a":1}{}`, `{"a":1,"a":2}`, `{"a":1,"\u0061":2}`, `{"a":}`, `{'a':1}`} {
		if _, err := members([]byte(body)); err == nil {
			t.Errorf("%s: was taken", body)
		}
	}
}
