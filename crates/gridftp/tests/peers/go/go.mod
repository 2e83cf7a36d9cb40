module phoebus/tests/peers

go 1.17

require github.com/jlaffaye/ftp v0.2.0

require (
	github.com/hashicorp/errwrap v1.0.0 // indirect
	github.com/hashicorp/go-multierror v1.1.1 // indirect
)
