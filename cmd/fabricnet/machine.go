package main

import (
	"context"

	"github.com/urfave/cli/v3"

	"github.com/seed202c38ff/fabricnet/internal/doctor"
)

func infoCommand() *cli.Command {
	return &cli.Command{
		Name: "info", Usage: "list libfabric's providers here, and which of them would be used, or why not",
		Flags: []cli.Flag{
			&cli.StringFlag{Name: "local", Usage: "for conns at this local `address`; for all addresses if it is missing"},
			&cli.StringSliceFlag{Name: "providers", Usage: "what a Dialer or ListenConfig would name: `names` with commas"},
			&cli.BoolFlag{Name: "json", Usage: "print JSON"},
		},
		Action: func(ctx context.Context, c *cli.Command) error {
			if err := noArguments(c); err != nil {
				return err
			}
			locals, err := doctor.LocalAddrs(c.String("local"))
			if err != nil {
				return usageError{err}
			}
			inventory, err := doctor.TakeInventory(ctx, locals, c.StringSlice("providers"))
			if err != nil {
				return err
			}
			if c.Bool("json") {
				return inventory.WriteJSON(c.Root().Writer)
			}
			return inventory.WriteText(c.Root().Writer)
		},
	}
}

func doctorCommand() *cli.Command {
	return &cli.Command{
		Name: "doctor", Usage: "say what keeps conns from working here, or from working well, and what to do; fails if something does not work",
		Flags: []cli.Flag{&cli.BoolFlag{Name: "json", Usage: "print JSON"}},
		Action: func(ctx context.Context, c *cli.Command) error {
			if err := noArguments(c); err != nil {
				return err
			}
			m, err := doctor.Local(ctx)
			if err != nil {
				return err
			}
			report := doctor.Examine(m)
			write := report.WriteText
			if c.Bool("json") {
				write = report.WriteJSON
			}
			if err := write(c.Root().Writer); err != nil {
				return err
			}
			return report.Err()
		},
	}
}
