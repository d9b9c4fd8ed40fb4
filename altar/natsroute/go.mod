module github.com/fivewire/fivewire/altar/natsroute

go 1.26.0

require github.com/fivewire/fivewire v0.0.0

replace github.com/fivewire/fivewire => ../..
