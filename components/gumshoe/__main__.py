from gumshoe.cli import main

main()
