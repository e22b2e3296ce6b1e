package codec

import "testing"

func TestLoneSurrogate(t *testing.T) {
	for _, c := range []struct {
		text string
		want int
	}{
		{``, -1},
		{`{"a":"é \u00e9 \n \\ud800"}`, -1},
		{`"\ud83d\ude00\ud83d\ude00"`, -1},
		{`"\uD83D\uDE00"`, -1},
		{`"\ud800"`, 1},
		{`"\\\ud800"`, 3},
		{`"ab\udc00\ud800"`, 3},
		{`"\ud83d\ude00\ude00"`, 13},
		{`"\ud800\u0041"`, 1},
		{`"\ud800\n"`, 1},
		{`"\ud80`, -1},
		{`"\ud800`, 1},
		{`\`, -1},
	} {
		if got := LoneSurrogate([]byte(c.text)); got != c.want {
			t.Errorf("%s: %d, want %d", c.text, got, c.want)
		}
	}
}
